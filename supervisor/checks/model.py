"""Checks of the starting checkpoint: its files, what its config.json says, and its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from milepost.actors.engine.embedded.shape import (
    ModelShape,
    UnsupportedModelError,
    read_shape,
    shape_from_config,
)
from milepost.actors.engine.embedded.tensors import tensors_of
from milepost.actors.engine.settings import SettingsDamaged, read_settings
from milepost.actors.trainer.fsdp.settings import dropout_faults, setting_faults
from milepost.actors.weights.manifest import Place, read_checkpoint
from milepost.configs.problem import Problem
from milepost.configs.run import ModelConfig
from milepost.supervisor.checkpoints import HUGGING_FACE
from milepost.supervisor.checks.check import Finding, Note, Subject

ARCHITECTURES: Final = ("qwen3", "qwen3_moe", "llama")
"""`model_type` of the checkpoints that the embedded engine and the fsdp trainer know."""
WHERE: Final = "$.model.path"
WHOLE: Final = "give a Hugging Face checkpoint with its tokenizer"
FLOATS: Final = ("bfloat16", "float16", "float32", "float64")
IGNORED: Final = ("lm_head.weight", "rotary_emb.inv_freq")
"""Tensors that a checkpoint may have beside its own: tied to another one, or computed."""
NAMED_MAX: Final = 3
"""Tensors of one kind of fault that are told by name."""


def checkpoint_is_complete(subject: Subject) -> Iterator[Finding]:
    """Four processes that start, import torch, and only then miss a file."""
    model = subject.topology.model
    if model is None:
        return
    if not model.path:
        origin = f"the recipe `{model.made_by}`" if model.made_by else f"`{model.create}`"
        yield Note(f"not there yet: {origin} makes it before the run", WHERE)
        return
    folder = model.folder
    if not folder.is_dir():
        yield Problem(f'"{model.path}" is not a folder', WHERE, "give a Hugging Face checkpoint")
        return
    missing = [
        pattern
        for pattern in ("config.json", "tokenizer.json", "*.safetensors")
        if not any(path.is_file() for path in folder.glob(pattern))
    ]
    for pattern in missing:
        inner = folder / HUGGING_FACE
        remedy = f"set {inner}" if len(missing) > 1 and inner.is_dir() else WHOLE
        yield Problem(f'"{model.path}" has no {pattern}', WHERE, remedy)
    if "config.json" not in missing:
        actors = subject.topology.actors
        computed = actors.engine is not None or actors.evaluation_engine is not None
        supervised = subject.topology.algorithm.estimator == "sft"
        yield from _config(model, computed=computed, supervised=supervised)


def _config(model: ModelConfig, *, computed: bool, supervised: bool) -> Iterator[Finding]:
    where = str(model.folder / "config.json")
    try:
        config = read_settings(model.folder)
    except SettingsDamaged as error:
        yield Problem(str(error), where, "write the checkpoint again")
        return
    except OSError as error:
        yield Problem(f"cannot be read: {error.strerror}", where, "let this user read it")
        return
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        yield Problem(f'model_type "{kind}" is not supported', where, f"known are {known}")
    else:
        yield from _sense(config, where, computed=computed)
        for fault in () if supervised else dropout_faults(config):
            yield Problem(fault, where, "set it to 0 there")
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions < model.context_tokens_max:
        what = (
            f"context_tokens_max = {model.context_tokens_max}, but the model has {positions} "
            "positions"
        )
        yield Problem(what, "$.model.context_tokens_max", f"set {positions} or less")


def _sense(config: dict[str, Any], where: str, *, computed: bool) -> Iterator[Finding]:
    # The trainer's model is that of transformers, which computes more than an engine of ours: a
    # supervised run has no engine.
    refused = (SettingsDamaged, UnsupportedModelError) if computed else SettingsDamaged
    try:
        shape_from_config(config)
    except refused as error:
        yield Problem(str(error), where, "give another checkpoint, or write this one again")
    except UnsupportedModelError:
        pass
    for fault in setting_faults(config):
        yield Problem(fault, where, "give another checkpoint, or write this one again")


def tensors_fit(subject: Subject) -> Iterator[Finding]:
    """A trainer that refuses the weights when all else has started; a layer that is never loaded.

    Names, shapes and dtypes are read, and whether the files are as long as they should be; the
    weights themselves are not.
    """
    model = subject.topology.model
    if model is None or not model.path:
        return
    try:
        shape = read_shape(model.folder)
    except (OSError, ValueError):
        return  # the check before names what is wrong with it
    if not any(path.is_file() for path in model.folder.glob("*.safetensors")):
        return  # likewise
    try:
        places = read_checkpoint(model.folder)
    except (OSError, ValueError) as error:
        yield Problem(str(error), WHERE, "give the whole checkpoint")
        return
    for what in _misfits(shape, places):
        remedy = f"give the weights that {model.folder / 'config.json'} describes"
        yield Problem(what, WHERE, remedy)


def _misfits(shape: ModelShape, places: dict[str, Place]) -> Iterator[str]:
    """What the tensors of a checkpoint lack, in words."""
    # transformers reads experts that are stored in one tensor, too; the trainer compares those.
    fused = any(".experts.gate_up_proj" in name for name in places)
    missing: list[str] = []
    misshapen: list[str] = []
    known: set[str] = set()
    for name, wanted in tensors_of(shape):
        if fused and ".experts." in name:
            continue
        known.add(name)
        if name not in places:
            missing.append(name)
        elif (found := places[name].spec.shape) != wanted:
            misshapen.append(f"{name} as {list(found)}, not {list(wanted)}")
        if max(len(missing), len(misshapen)) > NAMED_MAX:
            break  # of a model that says it is enormous, all names would never be told
    else:
        yield from _left_over(places, known, fused=fused)
    if missing:
        yield f"the checkpoint lacks {_some(missing)}"
    if misshapen:
        yield f"the checkpoint has {_some(misshapen)}"


def _left_over(places: dict[str, Place], known: set[str], *, fused: bool) -> Iterator[str]:
    extra = [
        name
        for name in places
        if name not in known and not name.endswith(IGNORED) and not (fused and ".experts." in name)
    ]
    if extra:
        yield f"the checkpoint has {_some(extra)} left over"
    dtypes = {name: place.spec.dtype for name, place in places.items()}
    if strange := [f"{name} as {each}" for name, each in dtypes.items() if each not in FLOATS]:
        yield f"the checkpoint has {_some(strange)}, not one of {', '.join(FLOATS)}"


def _some(names: list[str]) -> str:
    more = " and more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
