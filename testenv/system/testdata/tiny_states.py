"""Write four-layer random models of architectures with different states, with the start of a gemma's vocabulary.

usage: tiny_states.py SOURCE.gguf FOLDER ARCHITECTURE...
"""
import sys

import gguf
import numpy as np

VOCABULARY, WIDTH, LAYERS, FEED_FORWARD, HEADS, KV_HEADS, HEAD, STATE = 8192, 256, 4, 512, 4, 1, 64, 64
END_OF_TURN = 106
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' }}"
    "{{ m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


class Model:
    def __init__(self, source: gguf.GGUFReader, path: str, arch: str) -> None:
        self.arch, self.dice, self.out = arch, np.random.default_rng(5), gguf.GGUFWriter(path, arch)
        for name, field in source.fields.items():
            if not name.startswith("tokenizer.") or name.endswith("chat_template"):
                continue
            kind, value = field.types[0], field.contents()
            inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            self.out.add_key_value(name, value[:VOCABULARY] if inner is not None else value, kind, inner)
        self.out.add_string("tokenizer.chat_template", TEMPLATE)
        self.out.add_uint32("tokenizer.ggml.eot_token_id", END_OF_TURN)
        self.set(block_count=LAYERS, context_length=32768, embedding_length=WIDTH, feed_forward_length=FEED_FORWARD, vocab_size=VOCABULARY)
        self.set_float("attention.layer_norm_rms_epsilon", 1e-6)
        self.random("token_embd.weight", VOCABULARY, WIDTH, scale=1)
        self.random("output.weight", VOCABULARY, WIDTH, scale=0.15)
        self.ones("token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight", WIDTH)

    def set(self, **numbers: int) -> None:
        for name, n in numbers.items():
            self.out.add_uint32(f"{self.arch}.{name.replace('__', '.')}", n)

    def set_float(self, name: str, n: float) -> None:
        self.out.add_float32(f"{self.arch}.{name}", n)

    def random(self, name: str, *shape: int, scale: float = 0, exact: bool = False) -> None:
        values = self.dice.standard_normal(shape) * (scale or shape[-1] ** -0.5)
        self.out.add_tensor(name, values.astype(np.float32 if exact else np.float16))

    def uniform(self, name: str, low: float, high: float, *shape: int) -> None:
        self.out.add_tensor(name, self.dice.uniform(low, high, shape).astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.out.add_tensor(name, np.ones(shape, np.float32))

    def attention(self, layer: str, gated: bool = False, normed: bool = False) -> None:
        self.random(layer + "attn_q.weight", HEADS * HEAD * (2 if gated else 1), WIDTH)
        self.random(layer + "attn_k.weight", KV_HEADS * HEAD, WIDTH)
        self.random(layer + "attn_v.weight", KV_HEADS * HEAD, WIDTH)
        self.random(layer + "attn_output.weight", WIDTH, HEADS * HEAD)
        if normed:
            self.ones(layer + "attn_q_norm.weight", HEAD)
            self.ones(layer + "attn_k_norm.weight", HEAD)

    def feed_forward(self, layer: str) -> None:
        self.random(layer + "ffn_gate.weight", FEED_FORWARD, WIDTH)
        self.random(layer + "ffn_up.weight", FEED_FORWARD, WIDTH)
        self.random(layer + "ffn_down.weight", WIDTH, FEED_FORWARD)

    def heads(self, per_layer: bool = False) -> None:
        self.set(attention__head_count=HEADS, attention__key_length=HEAD, attention__value_length=HEAD)
        if per_layer:
            self.out.add_array(f"{self.arch}.attention.head_count_kv", [0, 0, KV_HEADS, 0])
        else:
            self.set(attention__head_count_kv=KV_HEADS)

    def mamba_shape(self) -> None:
        self.set(ssm__conv_kernel=4, ssm__inner_size=2 * WIDTH, ssm__state_size=STATE, ssm__time_step_rank=8, ssm__group_count=1)

    def mamba(self, layer: str) -> None:
        inner, ranks = 2 * WIDTH, 8
        self.random(layer + "ssm_in.weight", 2 * inner + 2 * STATE + ranks, WIDTH)
        self.random(layer + "ssm_conv1d.weight", inner + 2 * STATE, 4, scale=0.5, exact=True)
        self.random(layer + "ssm_conv1d.bias", inner + 2 * STATE, scale=0.1, exact=True)
        self.uniform(layer + "ssm_dt.bias", -4, -1, ranks)
        self.uniform(layer + "ssm_a", -1, -0.01, ranks, 1)
        self.ones(layer + "ssm_d", ranks, 1)
        self.ones(layer + "ssm_norm.weight", 1, inner)
        self.random(layer + "ssm_out.weight", WIDTH, inner)

    def delta_net(self, layer: str) -> None:
        keys, values = 2 * HEAD, 4 * HEAD
        self.random(layer + "attn_qkv.weight", 2 * keys + values, WIDTH)
        self.random(layer + "attn_gate.weight", values, WIDTH)
        self.random(layer + "ssm_conv1d.weight", 2 * keys + values, 4, scale=0.5, exact=True)
        self.uniform(layer + "ssm_dt.bias", -4, -1, 4)
        self.uniform(layer + "ssm_a", -1, -0.01, 4)
        self.random(layer + "ssm_beta.weight", 4, WIDTH)
        self.random(layer + "ssm_alpha.weight", 4, WIDTH)
        self.ones(layer + "ssm_norm.weight", HEAD)
        self.random(layer + "ssm_out.weight", WIDTH, values)


def llama(m: Model) -> None:
    m.heads()
    m.set(rope__dimension_count=HEAD)
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.ones(layer + "ffn_norm.weight", WIDTH)
        m.attention(layer)
        m.feed_forward(layer)


def mamba2(m: Model) -> None:
    m.mamba_shape()
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.mamba(layer)


def granitehybrid(m: Model) -> None:
    m.mamba_shape()
    m.heads(per_layer=True)
    m.set(rope__dimension_count=HEAD)
    for name, n in (("attention.scale", 0.125), ("embedding_scale", 1), ("residual_scale", 1), ("logit_scale", 1)):
        m.set_float(name, n)
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.ones(layer + "ffn_norm.weight", WIDTH)
        m.attention(layer) if i == 2 else m.mamba(layer)
        m.feed_forward(layer)


def falcon_h1(m: Model) -> None:
    m.mamba_shape()
    m.heads()
    m.set(rope__dimension_count=HEAD)
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.ones(layer + "ffn_norm", WIDTH)
        m.mamba(layer)
        m.attention(layer)
        m.feed_forward(layer)


def lfm2(m: Model) -> None:
    m.heads(per_layer=True)
    m.set(shortconv__l_cache=3, rope__dimension_count=HEAD)
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.ones(layer + "ffn_norm.weight", WIDTH)
        m.feed_forward(layer)
        if i == 2:
            m.attention(layer, normed=True)
        else:
            m.random(layer + "shortconv.conv.weight", WIDTH, 3, scale=0.6, exact=True)
            m.random(layer + "shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
            m.random(layer + "shortconv.out_proj.weight", WIDTH, WIDTH)


def qwen35(m: Model) -> None:
    m.set(ssm__conv_kernel=4, ssm__inner_size=4 * HEAD, ssm__state_size=HEAD, ssm__time_step_rank=4, ssm__group_count=2)
    m.heads()
    m.set(full_attention_interval=4, rope__dimension_count=32)
    m.set_float("rope.freq_base", 1e6)
    m.out.add_array("qwen35.rope.dimension_sections", [8, 4, 4, 0])
    for i in range(LAYERS):
        layer = f"blk.{i}."
        m.ones(layer + "attn_norm.weight", WIDTH)
        m.ones(layer + "post_attention_norm.weight", WIDTH)
        m.attention(layer, gated=True, normed=True) if i == 3 else m.delta_net(layer)
        m.feed_forward(layer)


def gemma3(m: Model) -> None:
    m.heads()
    m.set(attention__sliding_window=512)
    m.set_float("rope.freq_base", 1e6)
    for i in range(LAYERS):
        layer = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            m.ones(f"{layer}{norm}.weight", WIDTH)
        m.attention(layer, normed=True)
        m.feed_forward(layer)


WRITERS = {
    "llama": llama, "gemma3": gemma3, "mamba2": mamba2, "granitehybrid": granitehybrid, "falcon-h1": falcon_h1, "lfm2": lfm2, "qwen35": qwen35,
}


def main(source: str, folder: str, *archs: str) -> None:
    reader = gguf.GGUFReader(source)
    for arch in archs:
        m = Model(reader, f"{folder}/{arch}.gguf", arch)
        WRITERS[arch](m)
        m.out.write_header_to_file()
        m.out.write_kv_data_to_file()
        m.out.write_tensors_to_file()
        m.out.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
