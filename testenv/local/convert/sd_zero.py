"""Write a Stable Diffusion 1 checkpoint in which every weight is zero: a header and a hole
in the file, 922 MiB that take 116 KiB on disk. It has every tensor that
stable-diffusion.cpp asks for, in the layout with few blocks that SDXS has, and every image
is the same grey.

usage: sd_zero.py OUT
"""
import sys

from tensorfile import header

TEXT, WORDS, TEXT_LAYERS = 768, 49408, 12
BASE, TIME = 320, 1280  # of the denoiser
LEVELS = (1, 2, 4)
CODER, CODER_LEVELS, LATENT = 128, (1, 2, 4, 4), 4  # of the autoencoder


class Shapes(dict):
    """Shapes by name, added module by module."""

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        self[name + ".weight"] = (outputs, inputs)
        if bias:
            self[name + ".bias"] = (outputs,)

    def conv(self, name: str, inputs: int, outputs: int, kernel: int = 3) -> None:
        self[name + ".weight"] = (outputs, inputs, kernel, kernel)
        self[name + ".bias"] = (outputs,)

    def norm(self, name: str, width: int) -> None:
        self[name + ".weight"] = self[name + ".bias"] = (width,)


def add_text_encoder(s: Shapes) -> None:
    text = "cond_stage_model.transformer.text_model."
    s[text + "embeddings.token_embedding.weight"] = (WORDS, TEXT)
    s[text + "embeddings.position_embedding.weight"] = (77, TEXT)
    for i in range(TEXT_LAYERS):
        layer = f"{text}encoder.layers.{i}."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            s.linear(f"{layer}self_attn.{part}", TEXT, TEXT)
        s.norm(layer + "layer_norm1", TEXT)
        s.norm(layer + "layer_norm2", TEXT)
        s.linear(layer + "mlp.fc1", TEXT, 4 * TEXT)
        s.linear(layer + "mlp.fc2", 4 * TEXT, TEXT)
    s.norm(text + "final_layer_norm", TEXT)


def add_residual(s: Shapes, name: str, inputs: int, outputs: int) -> None:
    s.norm(name + ".in_layers.0", inputs)
    s.conv(name + ".in_layers.2", inputs, outputs)
    s.linear(name + ".emb_layers.1", TIME, outputs)
    s.norm(name + ".out_layers.0", outputs)
    s.conv(name + ".out_layers.3", outputs, outputs)
    if inputs != outputs:
        s.conv(name + ".skip_connection", inputs, outputs, 1)


def add_transformer(s: Shapes, name: str, width: int) -> None:
    s.norm(name + ".norm", width)
    s.conv(name + ".proj_in", width, width, 1)
    block = name + ".transformer_blocks.0."
    for part, context in (("attn1", width), ("attn2", TEXT)):
        s.linear(f"{block}{part}.to_q", width, width, False)
        s.linear(f"{block}{part}.to_k", context, width, False)
        s.linear(f"{block}{part}.to_v", context, width, False)
        s.linear(f"{block}{part}.to_out.0", width, width)
    s.linear(block + "ff.net.0.proj", width, 8 * width)
    s.linear(block + "ff.net.2", 4 * width, width)
    for i in (1, 2, 3):
        s.norm(f"{block}norm{i}", width)
    s.conv(name + ".proj_out", width, width, 1)


def add_denoiser(s: Shapes) -> None:
    net = "model.diffusion_model."
    s.linear(net + "time_embed.0", BASE, TIME)
    s.linear(net + "time_embed.2", TIME, TIME)
    s.conv(net + "input_blocks.0.0", LATENT, BASE)
    width, skips, block = BASE, [BASE], 0
    for level in LEVELS:  # one residual block where others have two, but their numbers, and halving but for the last
        block += 1
        add_residual(s, f"{net}input_blocks.{block}.0", width, level * BASE)
        width = level * BASE
        add_transformer(s, f"{net}input_blocks.{block}.1", width)
        skips.append(width)
        block += 1
        if level != LEVELS[-1]:
            block += 1
            s.conv(f"{net}input_blocks.{block}.0.op", width, width)
            skips.append(width)
    block = 0
    for level in reversed(LEVELS):
        for second in (False, True):
            add_residual(s, f"{net}output_blocks.{block}.0", width + skips.pop(), level * BASE)
            width = level * BASE
            add_transformer(s, f"{net}output_blocks.{block}.1", width)
            if second and level != 1:  # doubling: a block of its own, under the number that stable-diffusion.cpp looks it up by
                block += 1
                s.conv(f"{net}output_blocks.{block}.{1 if block == 2 else 2}.conv", width, width)
            block += 1
    s.norm(net + "out.0", BASE)
    s.conv(net + "out.2", BASE, LATENT)


def add_coder_residual(s: Shapes, name: str, inputs: int, outputs: int) -> None:
    s.norm(name + ".norm1", inputs)
    s.conv(name + ".conv1", inputs, outputs)
    s.norm(name + ".norm2", outputs)
    s.conv(name + ".conv2", outputs, outputs)
    if inputs != outputs:
        s.conv(name + ".nin_shortcut", inputs, outputs, 1)


def add_middle(s: Shapes, side: str, width: int) -> None:
    add_coder_residual(s, side + "mid.block_1", width, width)
    s.norm(side + "mid.attn_1.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        s.conv(f"{side}mid.attn_1.{part}", width, width, 1)
    add_coder_residual(s, side + "mid.block_2", width, width)


def add_autoencoder(s: Shapes) -> None:
    coder = "first_stage_model."
    side, width, last = coder + "encoder.", CODER, len(CODER_LEVELS) - 1
    s.conv(side + "conv_in", 3, CODER)
    for i, level in enumerate(CODER_LEVELS):
        for j in range(2):
            add_coder_residual(s, f"{side}down.{i}.block.{j}", width, level * CODER)
            width = level * CODER
        if i != last:
            s.conv(f"{side}down.{i}.downsample.conv", width, width)
    add_middle(s, side, width)
    s.norm(side + "norm_out", width)
    s.conv(side + "conv_out", width, 2 * LATENT)
    side = coder + "decoder."
    s.conv(side + "conv_in", LATENT, width)
    add_middle(s, side, width)
    for i, level in reversed(list(enumerate(CODER_LEVELS))):
        for j in range(3):
            add_coder_residual(s, f"{side}up.{i}.block.{j}", width, level * CODER)
            width = level * CODER
        if i:
            s.conv(f"{side}up.{i}.upsample.conv", width, width)
    s.norm(side + "norm_out", width)
    s.conv(side + "conv_out", width, 3)
    s.conv(coder + "quant_conv", 2 * LATENT, 2 * LATENT, 1)
    s.conv(coder + "post_quant_conv", LATENT, LATENT, 1)


def main(out: str) -> None:
    shapes = Shapes()
    add_text_encoder(shapes)
    add_denoiser(shapes)
    add_autoencoder(shapes)
    head, size = header(shapes, "F16")
    with open(out, "wb") as f:
        f.write(head)
        f.truncate(len(head) + size)


if __name__ == "__main__":
    main(*sys.argv[1:])
