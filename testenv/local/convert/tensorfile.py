"""The safetensors format: a length, a JSON header of offsets, then the data."""
import json
import struct
from pathlib import Path

import numpy as np

KINDS = {"F32": "<f4", "F16": "<f2"}


class SafeTensors:
    """Reads a file's tensors by name, as float32."""

    def __init__(self, path: Path):
        raw = path.read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        self._header = json.loads(raw[8:8 + size])
        self._data = memoryview(raw)[8 + size:]

    def __iter__(self):
        return (name for name in self._header if name != "__metadata__")

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._header[name]
        begin, end = entry["data_offsets"]
        return np.frombuffer(self._data[begin:end], KINDS[entry["dtype"]]).reshape(entry["shape"]).astype(np.float32)


def header(shapes: dict[str, tuple[int, ...]], kind: str) -> tuple[bytes, int]:
    """The beginning of a file whose tensors follow in order, and how many bytes they have."""
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * np.dtype(KINDS[kind]).itemsize
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write tensors as float32."""
    with open(path, "wb") as out:
        out.write(header({n: t.shape for n, t in tensors.items()}, "F32")[0])
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor, "<f4").tobytes())
