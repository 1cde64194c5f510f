"""What a checkpoint's `config.json` may not say if its model is to be trained. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
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

KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(("initializer_range", "rms_norm_eps"), ((float,), "a number with a point")),
    **dict.fromkeys(("attention_dropout",), ((int, float), "a number")),
    **dict.fromkeys(
        (
            "attention_bias", "mlp_bias", "norm_topk_prob", "output_router_logits",
            "tie_word_embeddings", "use_cache", "use_sliding_window",
        ),
        ((bool,), "true or false"),
    ),
    **dict.fromkeys(("max_window_layers", "num_labels"), ((int,), "a whole number")),
    **dict.fromkeys(
        ("bos_token_id", "pad_token_id", "sliding_window"),
        ((int, NoneType), "a whole number or null"),
    ),
    "eos_token_id": ((int, list, NoneType), "a whole number, a list of them or null"),
    "id2label": ((dict, NoneType), "a table or null"),
}  # fmt: skip
"""Values for which transformers refuses a configuration that has them in another type."""
WRITTEN: Final = ("head_dim", "num_key_value_heads")
"""What qwen3 and qwen3_moe have defaults for that fit no other size: not to be left out."""


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
    yield from _kind_faults(settings)
    layers = settings.get("layer_types")
    if layers is not None:
        yield from _layer_faults(layers, settings.get("num_hidden_layers"))
    if settings.get("sliding_window") and settings.get("use_sliding_window", True):
        yield f"uses a sliding window of {settings['sliding_window']} tokens"
    if settings.get("quantization_config"):
        yield "has quantization_config, and quantized weights are not trained"
    for name in ("dtype", "torch_dtype"):
        dtype = settings.get(name)
        if dtype is not None and dtype not in DTYPES:
            yield f"has {name} {dtype!r}, known are {', '.join(DTYPES)}"


def dropout_faults(settings: dict[str, Any]) -> Iterator[str]:
    """What makes passes of policy-gradient training random: its ratios would be of two networks.

    No other setting of the models in `CLASSES` drops anything.
    """
    rate: Any = settings.get("attention_dropout")
    if type(rate) in (int, float) and 0 < rate < 1:
        yield f"has attention_dropout {rate}, and only supervised training can have any"


def _kind_faults(settings: dict[str, Any]) -> Iterator[str]:
    for name, (kinds, words) in KINDS.items():
        value = settings.get(name)
        # Python counts true and false as whole numbers.
        if name in settings and type(value) not in kinds:
            yield f"has {name} {value!r}, not {words}"
    rate: Any = settings.get("attention_dropout")
    if type(rate) in (int, float) and not 0 <= rate < 1:
        yield f"has attention_dropout {rate}, not a number from 0 to below 1"
    pad, rows = settings.get("pad_token_id"), settings.get("vocab_size")
    if type(pad) is int and type(rows) is int and pad >= rows:
        yield f"has pad_token_id {pad}, and vocab_size {rows}"
    if str(settings.get("model_type")).startswith("qwen3"):
        missing = [name for name in WRITTEN if settings.get(name) is None]
        if missing:
            yield f"does not say {' and '.join(missing)}"


def _layer_faults(layers: object, number: object) -> Iterator[str]:
    if not isinstance(layers, list) or any(each != "full_attention" for each in layers):
        kinds = sorted(set(map(str, layers))) if isinstance(layers, list) else layers
        yield f"has layers of {kinds}, only full_attention is known"
    elif len(layers) != number:
        yield f"has layer_types of {len(layers)} layers, and num_hidden_layers {number}"
