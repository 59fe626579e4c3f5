"""Wheels from the package index, several at a time, each checked before use."""
import os
import subprocess
import sys
import time
from pathlib import Path

from files import Cache, Failed, say, sha256
from pins import Pins, Wheel

PROGRESS_EVERY = 2.0  # seconds
POLL_EVERY = 0.1


def download(cache: Cache, pins: Pins, names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the wheels that are there now, and for the others why they are not."""
    cache.downloads.mkdir(exist_ok=True)
    have = {n: cache.downloads / f"{n}.whl" for n in names}
    todo = [pins.wheels[n] for n in names if not have[n].exists()]
    missing: dict[str, str] = {}
    if todo:
        with cache.scratch() as scratch:
            jobs = [_Job(wheel, scratch / wheel.name) for wheel in todo]
            try:
                _wait(jobs, sum(w.size for w in todo))
            finally:
                for job in jobs:
                    job.stop()
            for job in jobs:
                try:
                    os.replace(job.result(), have[job.wheel.name])
                except Failed as err:
                    missing[job.wheel.name] = str(err)
    return {n: p for n, p in have.items() if n not in missing}, missing


def _wait(jobs: list["_Job"], total: int) -> None:
    say(f"downloading {len(jobs)} files, {total >> 20} MiB")
    told = time.monotonic()
    while any(job.running() for job in jobs):
        time.sleep(POLL_EVERY)
        if time.monotonic() - told >= PROGRESS_EVERY:
            told = time.monotonic()
            done = min(sum(job.bytes() for job in jobs), total)
            say(f"downloaded {done >> 20} of {total >> 20} MiB")


class _Job:
    """One pip process. Its temporary files are in its own folder, so their sizes show
    how far it is."""

    def __init__(self, wheel: Wheel, folder: Path):
        self.wheel, self._folder, self._out = wheel, folder, folder / "out"
        (folder / "tmp").mkdir(parents=True)
        self._out.mkdir()
        self._log = folder / "log"
        with open(self._log, "w") as log:
            self._pip = subprocess.Popen(
                self._command(), cwd=self._out,
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": str(folder / "tmp")})

    def _command(self) -> list[str]:
        if self.wheel.kind == "npm":
            return ["npm", "pack", "--silent", f"{self.wheel.name}@{self.wheel.version}"]
        form = "--no-binary=:all:" if self.wheel.kind == "sdist" else "--only-binary=:all:"
        return [sys.executable, "-m", "pip", "download", "--no-deps", form, "--progress-bar=off",
                "--dest", str(self._out), f"{self.wheel.name}=={self.wheel.version}"]

    def running(self) -> bool:
        return self._pip.poll() is None

    def bytes(self) -> int:
        # pip removes files and folders meanwhile; os.walk leaves out folders that are gone.
        found = [os.path.join(at, name) for part in (self._out, self._folder / "tmp") for at, _, names in os.walk(part) for name in names]
        total = 0
        for f in found:
            try:
                total += os.path.getsize(f)
            except OSError:
                pass
        return min(total, self.wheel.size)

    def stop(self) -> None:
        if self.running():
            self._pip.terminate()
            self._pip.wait()

    def result(self) -> Path:
        """The checked wheel."""
        pinned = f"{self.wheel.name}=={self.wheel.version}"
        found = list(self._out.iterdir())
        if self._pip.returncode != 0 or len(found) != 1:
            raise Failed(f"{'npm' if self.wheel.kind == 'npm' else 'pip'} could not download {pinned}: {self._why()}")
        got = sha256(found[0])
        if got != self.wheel.sha256:
            raise Failed(f"{pinned} has sha256 {got}, pinned is {self.wheel.sha256}")
        return found[0]

    def _why(self) -> str:
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("ERROR")]
        if any("No matching distribution" in line for line in lines):
            return "the package index has none for this machine (its address is pip's own setting)"
        return lines[-1] if lines else f"it ended with status {self._pip.returncode}"
