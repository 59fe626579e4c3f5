"""A Python of our own under .cache/venv, so that nothing is installed system-wide."""
import hashlib
import subprocess
import sys
from pathlib import Path

from files import Cache, Failed, say


def ensure_python(cache: Cache, requirements: str, deps: bool) -> Path:
    """Return an interpreter that has the packages of a requirements file beside this
    module. A stamp, written last, says that an installation is complete for this version
    of Python and of the file."""
    listed = Path(__file__).with_name(requirements)
    venv = cache.root / "venv"
    python = venv / "bin" / "python"
    key = hashlib.sha256(listed.read_bytes() + sys.version.encode()).hexdigest()[:16]
    stamp = venv / f"{listed.stem}-{key}"
    if stamp.exists():
        return python
    say(f"installing Python packages of {requirements} into {venv}")
    if not runs(python):
        # Some systems ship venv without the pip that it would install, and old pips
        # cannot install into another Python: a target folder works everywhere.
        run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], "make a Python environment")
    target = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "--upgrade",
               "--requirement", str(listed)]
    run(install if deps else [*install, "--no-deps"], f"install {requirements}")
    stamp.touch()
    return python


def runs(python: Path) -> bool:
    """Whether the environment is whole and of this version of Python."""
    same = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    try:
        return subprocess.run([python, "-c", same], check=False).returncode == 0
    except OSError:
        return False


def run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"could not {what}: {done.stdout.strip()[-800:]}")
