"""Write a SigLIP vision tower with random weights, in gemma3's projector layout.

The engine does an encoder's real work with it and sees nothing: the same picture gives
the same numbers, and that is all a test may expect. PROJECTION must be the hidden size
of the language model beside it.

usage: vision_tower.py OUT PROJECTION PIXELS
"""
import sys

import gguf
from weights import Weights, ones

WIDTH, HEADS, LAYERS, FEED_FORWARD, PATCH = 256, 4, 4, 1024, 14


def main(out: str, projection: int, pixels: int) -> None:
    writer = gguf.GGUFWriter(out, "clip")
    add_shape(writer, projection, pixels)
    add_tensors(writer, Weights(seed=7), projection, patches=(pixels // PATCH) ** 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, projection: int, pixels: int) -> None:
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", True)
    for name, number in {
        "image_size": pixels, "patch_size": PATCH, "embedding_length": WIDTH, "feed_forward_length": FEED_FORWARD,
        "projection_dim": projection, "block_count": LAYERS, "attention.head_count": HEADS,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])


def add_tensors(writer: gguf.GGUFWriter, weights: Weights, projection: int, patches: int) -> None:
    def random(name: str, *shape: int) -> None:
        writer.add_tensor(name, weights.draw(*shape))

    def norm(name: str) -> None:
        writer.add_tensor(name + ".weight", ones(WIDTH))
        random(name + ".bias", WIDTH)

    random("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    random("v.patch_embd.bias", WIDTH)
    random("v.position_embd.weight", patches, WIDTH)
    for i in range(LAYERS):
        layer = f"v.blk.{i}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            random(f"{layer}{part}.weight", WIDTH, WIDTH)
            random(f"{layer}{part}.bias", WIDTH)
        norm(layer + "ln1")
        norm(layer + "ln2")
        random(layer + "ffn_up.weight", FEED_FORWARD, WIDTH)
        random(layer + "ffn_up.bias", FEED_FORWARD)
        random(layer + "ffn_down.weight", WIDTH, FEED_FORWARD)
        random(layer + "ffn_down.bias", WIDTH)
    norm("v.post_ln")
    random("mm.input_projection.weight", WIDTH, projection)
    writer.add_tensor("mm.soft_emb_norm.weight", ones(WIDTH))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
