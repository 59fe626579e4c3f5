"""Write a Whisper audio tower with random weights, in ultravox' projector layout.

As with vision_tower.py, the engine does an encoder's real work with it and hears nothing.
PROJECTION must be the hidden size of the language model beside it. STACK frames become
one token; it must divide the tower's 1500 positions, or the engine counts them wrong.

usage: audio_tower.py OUT PROJECTION
"""
import sys

import gguf
import numpy as np
from weights import Weights, ones

WIDTH, HEADS, LAYERS, FEED_FORWARD, MEL_BINS, POSITIONS, STACK, HIDDEN = 64, 2, 1, 128, 128, 1500, 20, 64


def main(out: str, projection: int) -> None:
    writer = gguf.GGUFWriter(out, "clip")
    add_shape(writer, projection)
    add_tensors(writer, Weights(seed=9), projection)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, projection: int) -> None:
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    writer.add_bool("clip.use_gelu", True)
    for name, number in {
        "num_mel_bins": MEL_BINS, "embedding_length": WIDTH, "feed_forward_length": FEED_FORWARD, "projection_dim": projection,
        "block_count": LAYERS, "attention.head_count": HEADS, "projector.stack_factor": STACK,
    }.items():
        writer.add_uint32(f"clip.audio.{name}", number)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)


def add_tensors(writer: gguf.GGUFWriter, weights: Weights, projection: int) -> None:
    def random(name: str, *shape: int, dtype=np.float32) -> None:
        writer.add_tensor(name, weights.draw(*shape, dtype=dtype))

    def norm(name: str) -> None:
        writer.add_tensor(name + ".weight", ones(WIDTH))
        random(name + ".bias", WIDTH)

    for i, channels in ((1, MEL_BINS), (2, WIDTH)):
        random(f"a.conv1d.{i}.weight", WIDTH, channels, 3, dtype=np.float16)  # the engine convolves halves only
        random(f"a.conv1d.{i}.bias", WIDTH, 1)
    random("a.position_embd.weight", POSITIONS, WIDTH)
    for i in range(LAYERS):
        layer = f"a.blk.{i}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            random(f"{layer}{part}.weight", WIDTH, WIDTH)
            if part != "attn_k":
                random(f"{layer}{part}.bias", WIDTH)
        norm(layer + "ln1")
        norm(layer + "ln2")
        random(layer + "ffn_up.weight", FEED_FORWARD, WIDTH)
        random(layer + "ffn_up.bias", FEED_FORWARD)
        random(layer + "ffn_down.weight", WIDTH, FEED_FORWARD)
        random(layer + "ffn_down.bias", WIDTH)
    norm("a.post_ln")
    writer.add_tensor("mm.a.norm_pre.weight", ones(WIDTH * STACK))
    random("mm.a.mlp.1.weight", 2 * HIDDEN, WIDTH * STACK)
    writer.add_tensor("mm.a.norm_mid.weight", ones(HIDDEN))
    random("mm.a.mlp.2.weight", projection, HIDDEN)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
