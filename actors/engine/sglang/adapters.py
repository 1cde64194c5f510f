"""LoRA adapters as PEFT writes them, looked at before a server is asked to load them.

An adapter adds `lora_alpha / r * B @ A` to a matrix: A is [r, in], B is [out, r]. A server loads
one whose tensors have other names or shapes than its model without a word, or dies of it; so every
tensor is compared with the matrix it belongs to, and settings that change the formula are refused.
Free of torch: the supervisor reads adapters before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.actors.weights.manifest import read_header
from milepost.configs.read import home_of

CONFIG: Final = "adapter_config.json"
TENSORS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
MODULES: Final = frozenset(
    {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
)
"""What an adapter may act on, outside of experts."""
PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "alpha_pattern": ({},),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "layers_to_transform": ([],),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "rank_pattern": ({},),
    "use_dora": (False,),
    "use_rslora": (False,),
}
"""Settings -> their only values; they may be absent or null, too."""
_NAMED_MAX: Final = 3

Shapes = Mapping[str, tuple[int, ...]]


class AdapterError(RuntimeError):
    """Adapters that do not fit the model; the text names each with what is wrong."""


def require_fitting(adapters: Mapping[str, str], shapes: Shapes) -> None:
    """Refuse adapters that a server could not load, or would load wrongly.

    Args:
        adapters: folder of each name.
        shapes: of the model's tensors, by Hugging Face name.

    Raises:
        AdapterError: see there.
    """
    faults = [
        f"{name}: {fault}"
        for name, folder in adapters.items()
        for fault in adapter_faults(Path(home_of(folder)), shapes)
    ]
    if faults:
        raise AdapterError("adapters do not fit: " + "; ".join(faults))


def adapter_faults(folder: Path, shapes: Shapes | None) -> Iterator[str]:
    """What is wrong with the adapter in a folder.

    Args:
        folder: of the adapter.
        shapes: as above; None where the model is not there yet.
    """
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=dict[str, Any])
        places = read_header(folder / TENSORS)
    except (OSError, ValueError, RecursionError) as error:
        yield f"{folder} is no adapter: {error}"
        return
    yield from _config_faults(config)
    rank = config.get("r")
    found = {place.spec.name: place.spec.shape for place in places}
    yield from _some(list(_tensor_faults(found, rank, shapes)))


def _config_faults(config: dict[str, Any]) -> Iterator[str]:
    if config.get("peft_type") != "LORA":
        yield f"peft_type is {config.get('peft_type')!r}, LORA is served"
    if not isinstance(config.get("r"), int) or config["r"] < 1:
        yield f"r is {config.get('r')!r}, a rank of 1 or more is needed"
    if not isinstance(config.get("lora_alpha"), int | float):
        yield f"lora_alpha is {config.get('lora_alpha')!r}, a number is needed"
    targets, names = config.get("target_modules"), sorted(MODULES)
    if not isinstance(targets, list) or not targets or any(one not in names for one in targets):
        yield f"target_modules is {targets!r}, a list out of {', '.join(names)} is needed"
    for name, values in PLAIN.items():
        value = config.get(name)
        if value is not None and value not in values:
            yield f"{name} = {value!r} is not served, train it without"


def _tensor_faults(
    found: dict[str, tuple[int, ...]], rank: object, shapes: Shapes | None
) -> Iterator[str]:
    if not found:
        yield "it has no tensors"
    for name, shape in found.items():
        module, _, end = name.removeprefix(PREFIX).rpartition(".lora_")
        if not name.startswith(PREFIX) or end not in {"A.weight", "B.weight"}:
            yield f"tensor {name} is no half of a LoRA pair"
            continue
        other = f"{PREFIX}{module}.lora_{'B' if end[0] == 'A' else 'A'}.weight"
        if other not in found:
            yield f"{name} has no counterpart {other}"
        if module.rpartition(".")[2] not in MODULES or ".experts." in module:
            yield f"{name} acts on {module}, which no adapter may"
        elif shapes is not None:
            base = shapes.get(f"{module}.weight")
            if base is None:
                yield f"{name} acts on {module}, which the model has not"
                continue
            wanted = (rank, base[1]) if end[0] == "A" else (base[0], rank)
            if shape != wanted:
                yield f"{name} is {shape}, {wanted} fits the model's {module} of {base}"


def _some(faults: list[str]) -> list[str]:
    more = len(faults) - _NAMED_MAX
    return [*faults[:_NAMED_MAX], f"and {more} tensors more"] if more > 0 else faults
