"""Checkpoints: sharded state by torch DCP, facts in meta.json, whole or not there at all.

RUN/checkpoints/step_000042/     written as .step_000042.partial, renamed when complete; one that is
                             there already is .step_000042.replaced meanwhile; what a killed
                             save left goes with the run, see supervisor/cleanup/halves.py
meta.json                    step, optimizer step, trained groups, random states
*.distcp, .metadata          parameters and moments, each rank its shards
hf/                          Hugging Face folder
"""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec import Struct
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from milepost.actors.session.families import bundled_template
from milepost.actors.session.text.sources import TextHashes, text_hashes
from milepost.actors.trainer.fsdp.learner import Learner
from milepost.actors.trainer.fsdp.model import parameter_shapes
from milepost.actors.trainer.fsdp.optimizer import MOMENTS
from milepost.actors.trainer.fsdp.stored import PARAMETER, CheckpointDamaged, Stored

META: Final = "meta.json"
HUGGING_FACE: Final = "hf"
FORMAT: Final = 1


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written; says on which ranks, and why."""


class CheckpointMeta(Struct, frozen=True, kw_only=True):
    """`meta.json`."""

    format: int = FORMAT
    step: int
    """Batches trained; also the weight version."""
    optimizer_step: int
    lr: float
    """Of the next optimizer step."""
    world_size: int
    trained_group_ids: tuple[str, ...]
    """Groups trained since the run began, in order, but for the first `trained_before`."""
    trained_before: int = 0
    """Groups whose names the journal of the rollout actor keeps for good."""
    rng_states: tuple[str, ...]
    """torch's CPU generator of each rank, base64."""
    tokenizer_hash: str = ""
    """With `template_hash`, what the run was trained with; empty where nobody wrote it down."""
    template_hash: str = ""


def folder_name(step: int) -> str:
    """`step_000042`, for step 42."""
    return f"step_{step:06d}"


def save_checkpoint(
    parent: Path,
    learner: Learner,
    *,
    step: int,
    trained_group_ids: tuple[str, ...],
    trained_before: int,
    keep: int,
    text: TextHashes,
    write_hugging_face: Callable[[Path], None],
) -> Path:
    """Write the checkpoint of `step`, then forget all but the newest `keep`. Collective.

    Args:
        parent: RUN/checkpoints, the same folder for every rank.
        learner: its policy and optimizer.
        step: batches trained.
        trained_group_ids: since the run began, but for the first ones.
        trained_before: how many those are.
        keep: checkpoints that stay, this one included.
        text: of the model that is trained.
        write_hugging_face: given the path of the `hf` folder; called on every rank (collective).

    Raises:
        CheckpointFailed: the disk is full, or does not take it for another reason.
    """
    group = learner.group
    final, partial = parent / folder_name(step), parent / f".{folder_name(step)}.partial"
    if group.leads:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    group.meet()
    try:
        save(learner_state(learner), storage_writer=FileSystemWriter(partial))
    except CheckpointException as error:
        # Room on a full disk, for what others have to write at their end.
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointFailed(f"{partial} cannot be written: {_causes(error)}") from error
    write_hugging_face(partial / HUGGING_FACE)
    states = group.gather(torch.get_rng_state().to(group.device))
    if group.leads:
        meta = CheckpointMeta(
            step=step,
            optimizer_step=learner.optimizer.step_count,
            lr=learner.optimizer.lr,
            world_size=group.world_size,
            trained_group_ids=trained_group_ids,
            trained_before=trained_before,
            rng_states=tuple(b64encode(state.cpu().numpy().tobytes()).decode() for state in states),
            tokenizer_hash=text.tokenizer,
            template_hash=text.template,
        )
        _put(partial / META, msgspec.json.encode(meta))
        _replace(final, partial)
        _forget(parent, keep)
    group.meet()
    return final


def _causes(error: CheckpointException) -> str:
    failures = error.failures.items()
    return "; ".join(f"rank {rank}: {type(each).__name__}: {each}" for rank, (each, _) in failures)


def load_checkpoint(folder: Path, learner: Learner, text: TextHashes) -> CheckpointMeta:
    """Fill `learner` from a checkpoint, whatever number of ranks wrote it. Collective.

    Args:
        folder: the checkpoint.
        learner: of the model that the run started from.
        text: of that model as it is now.

    Raises:
        CheckpointDamaged: no meta.json or metadata, another format, or tensors that are missing,
            left over or of another shape; or it was trained with another tokenizer or template.
    """
    meta = read_meta(folder)
    if what := other_text(meta, text):
        raise CheckpointDamaged(f"{folder} {what}")
    state = learner_state(learner)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if misfits := Stored.of(folder).misfits(shapes):
        raise CheckpointDamaged(f"{folder} {misfits}")
    try:
        load(state, storage_reader=FileSystemReader(folder))
    except CheckpointException as error:
        raise CheckpointDamaged(f"{folder} cannot be read: {_causes(error)}") from error
    learner.optimizer.step_count = meta.optimizer_step
    if meta.world_size == learner.group.world_size:
        data = bytearray(b64decode(meta.rng_states[learner.group.rank]))
        torch.set_rng_state(torch.frombuffer(data, dtype=torch.uint8))
    return meta


def read_meta(folder: Path) -> CheckpointMeta:
    """`meta.json` of a checkpoint.

    Raises:
        CheckpointDamaged: it is not there, cannot be read, or is of another format.
    """
    path = folder / META
    if not path.is_file():
        raise CheckpointDamaged(f"no {META} in {folder}: it is no complete checkpoint")
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=CheckpointMeta)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
    if meta.format != FORMAT:
        raise CheckpointDamaged(f"{path} has format {meta.format}, this trainer reads {FORMAT}")
    return meta


def learner_state(learner: Learner) -> dict[str, Tensor]:
    """The tensors of a checkpoint: parameters, and moments of the optimizer. Not copies."""
    parameters = learner.policy.parameters()
    state = {f"{PARAMETER}{name}": parameter.detach() for name, parameter in parameters.items()}
    return state | learner.optimizer.state()


def state_shapes(parameters: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of `learner_state`, for a policy with these parameters."""
    parts = (PARAMETER, *(f"{moment}/" for moment in MOMENTS))
    return {f"{part}{name}": shape for part in parts for name, shape in parameters.items()}


def other_text(meta: CheckpointMeta, text: TextHashes) -> str:
    """What the run was trained with and a model with this `text` lacks; empty when nothing."""
    pairs = (
        ("tokenizer", meta.tokenizer_hash, text.tokenizer),
        ("chat template", meta.template_hash, text.template),
    )
    for name, before, now in pairs:
        if before and now and before != now:
            return f"was trained with {name} {before}, and the model has {now}"
    return ""


def checkpoint_faults(folder: Path, source: Path, family: str) -> Iterator[tuple[str, bool]]:
    """Why a run cannot go on from a checkpoint, told before it is begun.

    Args:
        folder: the checkpoint.
        source: the starting checkpoint of the run, which says what its model is.
        family: `model.family`.

    Yields:
        What is wrong in words, and whether the checkpoint is damaged; else it is another model's.

    Raises:
        ModelRefused, SettingsDamaged, SourceDamaged: the starting checkpoint cannot be trained.
    """
    try:
        meta = read_meta(folder)
        stored = Stored.of(folder)
    except CheckpointDamaged as error:
        yield str(error), True
        return
    for what in stored.damage(folder):
        yield what, True
    if misfits := stored.misfits(state_shapes(parameter_shapes(source))):
        yield misfits, False
    elif what := other_text(meta, text_hashes(source, bundled_template(family))):
        yield what, False


def _replace(final: Path, partial: Path) -> None:
    """Give `partial` its name; what had it before stays whole until then."""
    aside = final.with_name(f".{final.name}.replaced")
    if final.exists():
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    partial.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _forget(parent: Path, keep: int) -> None:
    folders = [path for path in parent.iterdir() if re.fullmatch(r"step_\d{6,}", path.name)]
    folders.sort(key=lambda path: int(path.name.removeprefix("step_")))
    for path in folders[:-keep]:
        # Killed over it, it must not look whole because its meta.json is the last to go.
        shutil.rmtree(path.rename(path.with_name(f".{path.name}.partial")))
