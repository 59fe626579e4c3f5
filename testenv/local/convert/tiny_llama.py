"""Write a Llama of random weights with a tokenizer and a chat template, as a folder for
vLLM. A token is a byte, so that the vocabulary needs no training.

usage: tiny_llama.py OUT
"""
import json
import sys
from pathlib import Path

from tensorfile import write
from weights import Weights, ones

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FEED_FORWARD, POSITIONS = 2, 128, 2, 1, 64, 256, 2048
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = ("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def spelled_bytes() -> list[str]:
    """The characters that GPT-2's tokenizer spells the 256 bytes with: printable ones stay,
    the others are shifted behind them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(b if b in printable else next(shifted)) for b in range(256)]


def tokenizer() -> dict:
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *spelled_bytes()))}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, token in enumerate(SPECIAL)]
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": by_bytes, "decoder": by_bytes,
            "model": {"type": "BPE", "unk_token": None, "vocab": vocabulary, "merges": []}}


def main(out: str) -> None:
    target = Path(out)
    target.mkdir()
    vocabulary = len(SPECIAL) + 256
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    files = {
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": names | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE,
                                          "model_max_length": POSITIONS, "clean_up_tokenization_spaces": False},
        "special_tokens_map.json": names,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "vocab_size": vocabulary,
            "hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "max_position_embeddings": POSITIONS, "bos_token_id": 1,
            "eos_token_id": 2, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"},
    }
    for name, content in files.items():
        (target / name).write_text(json.dumps(content, indent=1))
    write(target / "model.safetensors", tensors(vocabulary))


def tensors(vocabulary: int) -> dict:
    draw = Weights(seed=1).draw
    made = {"model.embed_tokens.weight": draw(vocabulary, WIDTH)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        made |= {
            layer + "input_layernorm.weight": ones(WIDTH),
            layer + "self_attn.q_proj.weight": draw(HEADS * HEAD, WIDTH),
            layer + "self_attn.k_proj.weight": draw(KV_HEADS * HEAD, WIDTH),
            layer + "self_attn.v_proj.weight": draw(KV_HEADS * HEAD, WIDTH),
            layer + "self_attn.o_proj.weight": draw(WIDTH, HEADS * HEAD),
            layer + "post_attention_layernorm.weight": ones(WIDTH),
            layer + "mlp.gate_proj.weight": draw(FEED_FORWARD, WIDTH),
            layer + "mlp.up_proj.weight": draw(FEED_FORWARD, WIDTH),
            layer + "mlp.down_proj.weight": draw(WIDTH, FEED_FORWARD),
        }
    return made | {"model.norm.weight": ones(WIDTH), "lm_head.weight": draw(vocabulary, WIDTH)}


if __name__ == "__main__":
    main(*sys.argv[1:])
