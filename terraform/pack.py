#!/usr/bin/env python3
"""Pack a program as the code of a Lambda function: a zip with nothing but `bootstrap`, the same bytes every time.

usage: pack.py PROGRAM ZIP
"""
import sys
import zipfile
from pathlib import Path


def pack(program: Path, target: Path) -> None:
    entry = zipfile.ZipInfo("bootstrap", date_time=(1980, 1, 1, 0, 0, 0))
    entry.create_system = 3  # Unix, which makes the mode count
    entry.external_attr = 0o100755 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(entry, program.read_bytes(), compresslevel=9)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
