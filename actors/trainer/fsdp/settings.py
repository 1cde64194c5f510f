"""What a checkpoint's `config.json` may not say if its model is to be trained. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

CLASSES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""`model_type` of the models that engines compute, too -> its class with a head for text."""

HEAD_CHANGES: Final = (
    "final_logit_softcapping",
    "logits_scaling",
    "logit_scale",
    "lm_head_multiplier",
)
"""Settings of models that change logits after the head, which the packed forward does not do."""

DTYPES: Final = ("auto", "bfloat16", "float16", "float32", "float64")


def setting_faults(settings: dict[str, Any]) -> Iterator[str]:
    """Each thing in it that the trainer does not do, in words."""
    names = settings.get("architectures") or []
    known = CLASSES.get(str(settings.get("model_type")))
    if not isinstance(names, list) or len(names) != 1:
        yield f"names architectures {names}, expected one"
    elif known is not None and names[0] != known:
        yield f"names the architecture {names[0]}, expected {known}"
    if changes := [name for name in HEAD_CHANGES if settings.get(name) not in (None, 1, 1.0)]:
        yield f"sets {', '.join(changes)}, which the trainer does not apply"
    layers = settings.get("layer_types") or ["full_attention"]
    if not isinstance(layers, list) or any(each != "full_attention" for each in layers):
        kinds = sorted(set(map(str, layers))) if isinstance(layers, list) else layers
        yield f"has layers of {kinds}, only full_attention is known"
    if settings.get("sliding_window") and settings.get("use_sliding_window", True):
        yield f"uses a sliding window of {settings['sliding_window']} tokens"
    if settings.get("quantization_config"):
        yield "has quantization_config, and quantized weights are not trained"
    for name in ("dtype", "torch_dtype"):
        dtype = settings.get(name)
        if dtype is not None and dtype not in DTYPES:
            yield f"has {name} {dtype!r}, known are {', '.join(DTYPES)}"
