"""Write a two-layer random gemma3 of hidden size 256 with another gemma's tokenizer.

It is a language model of another hidden size, so that two models with vision can be
told apart; what it says is noise. Nearly all of its size is the vocabulary.

usage: tiny_gemma.py SOURCE.gguf OUT.gguf
"""
import sys

import gguf
import numpy as np
from weights import Weights, ones

WIDTH, LAYERS, FEED_FORWARD, HEADS, KV_HEADS, HEAD = 256, 2, 512, 4, 1, 64
SHAPE = {
    "gemma3.embedding_length": WIDTH, "gemma3.block_count": LAYERS, "gemma3.feed_forward_length": FEED_FORWARD,
    "gemma3.attention.head_count": HEADS, "gemma3.attention.head_count_kv": KV_HEADS,
    "gemma3.attention.key_length": HEAD, "gemma3.attention.value_length": HEAD,
}
WRITER_OWNED = {"general.architecture"}  # written by the constructor


def main(source: str, out: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "gemma3")
    copy_fields(reader, writer)
    vocabulary = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
    add_tensors(writer, vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Everything but the shape is the source's, the tokenizer above all."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in WRITER_OWNED or name in SHAPE:
            continue
        kind = field.types[0]
        inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for name, number in SHAPE.items():
        writer.add_uint32(name, number)


def add_tensors(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    weights = Weights(seed=3)

    def random(name: str, *shape: int) -> None:
        writer.add_tensor(name, weights.draw(*shape, dtype=np.float16))

    random("token_embd.weight", vocabulary, WIDTH)
    writer.add_tensor("output_norm.weight", ones(WIDTH))
    for i in range(LAYERS):
        layer = f"blk.{i}."
        for part in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            writer.add_tensor(f"{layer}{part}.weight", ones(WIDTH))
        for part in ("attn_q_norm", "attn_k_norm"):
            writer.add_tensor(f"{layer}{part}.weight", ones(HEAD))
        random(layer + "attn_q.weight", HEADS * HEAD, WIDTH)
        random(layer + "attn_k.weight", KV_HEADS * HEAD, WIDTH)
        random(layer + "attn_v.weight", KV_HEADS * HEAD, WIDTH)
        random(layer + "attn_output.weight", WIDTH, HEADS * HEAD)
        random(layer + "ffn_gate.weight", FEED_FORWARD, WIDTH)
        random(layer + "ffn_up.weight", FEED_FORWARD, WIDTH)
        random(layer + "ffn_down.weight", WIDTH, FEED_FORWARD)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
