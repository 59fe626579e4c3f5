"""Files of the cache: digests, atomic placing, and one fetch at a time."""
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path


class Failed(Exception):
    """Something outside went wrong; the text tells a person what."""


def say(line: str) -> None:
    """One line of progress."""
    print(f"fetch: {line}", flush=True)


def sha256(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(f)


def _sha256(f) -> str:
    h = hashlib.sha256()
    while block := f.read(1 << 20):
        h.update(block)
    return h.hexdigest()


class Cache:
    """The folder .cache. While open it is locked: a second fetch waits for the first
    and then finds its work done. The lock goes with the process, however it ends."""

    def __init__(self, root: Path):
        self.root = root

    def __enter__(self) -> "Cache":
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.root / "fetch.lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another fetch to end")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        for stale in self.root.glob("tmp-*"):  # of a fetch that was killed
            shutil.rmtree(stale, ignore_errors=True)
        return self

    def __exit__(self, *_) -> None:
        self._lock.close()

    @property
    def downloads(self) -> Path:
        """Where checked wheels wait until every output is made."""
        return self.root / "downloads"

    def drop_downloads(self) -> None:
        shutil.rmtree(self.downloads, ignore_errors=True)

    @contextlib.contextmanager
    def scratch(self):
        """A folder on the cache's own file system, gone at the end whatever happens."""
        path = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.root))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def place(self, made: Path, path: str, digest: str) -> None:
        """Move a finished file or folder to its place in one step."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(made, target)
        self._remember(path, digest)

    def matches(self, path: str, digest: str, verify: bool) -> bool:
        """Whether the file at path has the digest. Its size and time stand for its
        bytes if they are as they were when last computed, unless verify is set."""
        target = self.root / path
        if not target.is_file():
            return False
        if not verify and self._seen().get(path) == self._mark(target, digest):
            return True
        if sha256(target) != digest:
            return False
        self._remember(path, digest)
        return True

    def _seen(self) -> dict:
        try:
            return json.loads((self.root / "verified.json").read_text())
        except (OSError, ValueError):
            return {}

    def _remember(self, path: str, digest: str) -> None:
        target = self.root / path
        if target.is_file():
            seen = self._seen() | {path: self._mark(target, digest)}
            new = self.root / "verified.json.new"
            new.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")
            os.replace(new, self.root / "verified.json")

    @staticmethod
    def _mark(target: Path, digest: str) -> list:
        stat = target.stat()
        return [stat.st_size, stat.st_mtime_ns, digest]
