"""Random weights that are the same bytes on every machine.

NumPy promises the stream of a bit generator for ever, but not that of its
distributions, so only raw bits are taken and turned into numbers by exact arithmetic.
"""
import math

import numpy as np


class Weights:
    """Uniform weights around zero with the standard deviation of a small network."""

    def __init__(self, seed: int, deviation: float = 0.05):
        self._bits = np.random.PCG64(seed)
        # A power of two times a small integer is exact in float32; a uniform number
        # in ±a has deviation a/√3.
        self._step = np.float32(round(deviation * math.sqrt(3) * 1024) / 1024 / 32768)

    def draw(self, *shape: int, dtype=np.float32) -> np.ndarray:
        n = math.prod(shape)
        raw = self._bits.random_raw((n + 3) // 4).astype("<u8").view("<i2")[:n]
        return (raw.astype(np.float32) * self._step).astype(dtype).reshape(shape)


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)
