"""Cases that a Go test reads: each prints a JSON line {"case", "seconds", "error"}, error empty for one that held."""

import json
import time
import traceback

CASES = []


def case(f):
    CASES.append(f)
    return f


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def main():
    for f in CASES:
        began, error = time.monotonic(), ""
        try:
            f()
        except Exception:
            error = traceback.format_exc(limit=-4)
        print(json.dumps({"case": f.__name__, "seconds": round(time.monotonic() - began, 2), "error": error}), flush=True)
