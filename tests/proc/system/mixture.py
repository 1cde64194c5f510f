"""A dense checkpoint upcycled to a mixture of experts, so that it talks as well as the dense one.

Each expert begins as the dense feed-forward with noise of its own (Komatsuzaki et al. 2022,
arXiv:2212.05055); the router is random. So experts differ, and it matters which of them is taken.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import load_file, save_file

EXPERTS: Final = 4
PER_TOKEN: Final = 2
NOISE: Final = 0.05


def upcycle(source: Path, folder: Path) -> Path:
    """Write a Qwen3-MoE checkpoint beside the Qwen3 one in `source`; returns its folder."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text("utf-8"))
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "num_experts_per_tok": PER_TOKEN,
        "moe_intermediate_size": config["intermediate_size"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = np.random.default_rng(5)
    weights = {}
    for name, values in load_file(source / "model.safetensors").items():
        layer, mlp, rest = name.partition(".mlp.")
        if not mlp:
            weights[name] = values
            continue
        for expert in range(EXPERTS):
            noise = generator.standard_normal(values.shape, dtype=np.float32) * NOISE
            weights[f"{layer}.mlp.experts.{expert}.{rest}"] = values * (1 + noise)
        router = generator.standard_normal((EXPERTS, config["hidden_size"]), dtype=np.float32)
        weights.setdefault(f"{layer}.mlp.gate.weight", router * config["hidden_size"] ** -0.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
