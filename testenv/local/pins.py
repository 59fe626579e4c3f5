"""pins.json: the digests that downloads and outputs must have."""
import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("pins.json")


@dataclass(frozen=True)
class Wheel:
    """A file of a package index. size is in bytes and only for progress lines; kind is
    wheel, sdist or npm."""
    name: str
    version: str
    sha256: str
    size: int
    kind: str = "wheel"


@dataclass(frozen=True)
class Pins:
    wheels: dict[str, Wheel]
    outputs: dict[str, str]  # path in the cache → sha256

    @classmethod
    def load(cls) -> "Pins":
        raw = json.loads(FILE.read_text())
        return cls({n: Wheel(n, **w) for n, w in raw["wheels"].items()}, raw["outputs"])
