"""Checks of the files that a topology names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from milepost.actors.rollout.prompts import PromptError, load_prompts
from milepost.configs.problem import Problem
from milepost.messages.shared import Prompt
from milepost.supervisor.checks.check import Finding, Note, Subject
from milepost.supervisor.checks.wiring import is_prompt_file

ARCHITECTURES: Final = ("qwen3", "qwen3_moe", "llama")
"""`model_type` of the checkpoints that the embedded engine and the fsdp trainer know."""


def checkpoint_is_complete(subject: Subject) -> Iterator[Finding]:
    """Four processes that start, import torch, and only then miss a file."""
    model = subject.topology.model
    if model is None:
        return
    where = "$.model.path"
    if not model.path:
        origin = f"the recipe `{model.made_by}`" if model.made_by else f"`{model.create}`"
        yield Note(f"not there yet: {origin} makes it before the run", where)
        return
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        yield Problem(f'"{model.path}" is not a folder', where, "give a Hugging Face checkpoint")
        return
    for pattern in ("config.json", "tokenizer.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            remedy = "give a Hugging Face checkpoint with its tokenizer"
            yield Problem(f'"{model.path}" has no {pattern}', where, remedy)
    if (folder / "config.json").is_file():
        yield from _config(folder / "config.json", model.context_tokens_max)


def _config(path: Path, context_tokens_max: int) -> Iterator[Finding]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        yield Problem(f"not JSON: {error}", str(path), "write the checkpoint again")
        return
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        yield Problem(f'model_type "{kind}" is not supported', str(path), f"known are {known}")
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions < context_tokens_max:
        what = f"context_tokens_max = {context_tokens_max}, but the model has {positions} positions"
        yield Problem(what, "$.model.context_tokens_max", f"set {positions} or less")


def prompts_are_readable(subject: Subject) -> Iterator[Finding]:
    """A bad line of the prompt file that is met only when its turn comes."""
    data = subject.topology.data
    if data is None:
        return
    sources = [("$.data.prompts", data.prompts, "train")]
    if subject.topology.actors.evaluator is not None:
        sources.append(("$.data.held_out_prompts", data.held_out_prompts, "held_out"))
    for where, source, split in sources:
        if not is_prompt_file(source):
            continue
        try:
            load_prompts(source, split, subject.topology.run.seed, data.options)
        except PromptError as error:
            yield Problem(str(error), where, "repair the file; docs/topology.md shows one")


def held_out_is_apart(subject: Subject) -> Iterator[Finding]:
    """A score on prompts that were trained on, which looks like success."""
    data = subject.topology.data
    if data is None or subject.topology.actors.evaluator is None:
        return
    if not (is_prompt_file(data.prompts) and is_prompt_file(data.held_out_prompts)):
        return
    seed, where = subject.topology.run.seed, "$.data.held_out_prompts"
    try:
        trained = load_prompts(data.prompts, "train", seed, data.options)
        held_out = load_prompts(data.held_out_prompts, "held_out", seed, data.options)
    except PromptError:
        return  # named by the check before
    whole = {_digest(prompt, "messages", "tools", "label", "metadata") for prompt in trained}
    same = [p for p in held_out if _digest(p, "messages", "tools", "label", "metadata") in whole]
    if same:
        what = (
            f"{len(same)} of {len(held_out)} held-out prompts are training prompts, too; the first"
            f' is "{same[0].prompt_id}"'
        )
        yield Problem(what, where, "cut the file in two: FILE.jsonl@[:-100], FILE.jsonl@[-100:]")
        return
    texts = {_digest(prompt, "messages", "tools") for prompt in trained}
    alike = sum(_digest(prompt, "messages", "tools") in texts for prompt in held_out)
    if alike:
        text = (
            f"{alike} of {len(held_out)} have the messages of a training prompt, and differ from it"
            " only in label or metadata"
        )
        yield Note(text, where)


def _digest(prompt: Prompt, *fields: str) -> bytes:
    parts = [getattr(prompt, name) for name in fields]
    return blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=16).digest()


def archive_has_room(subject: Subject) -> Iterator[Finding]:
    """Trajectories that are not archived, since the disk is full before `archive.bytes_max`."""
    archive, free = subject.topology.archive, subject.machine.disk_free_bytes
    if not archive.enabled or subject.topology.actors.buffer is None or free >= archive.bytes_max:
        return
    bound, room = (f"{size / (1 << 20):,.0f} MiB" for size in (archive.bytes_max, free))
    text = f"the archive may take {bound}, {room} are free on disk: lower it, or free some"
    yield Note(text, "$.archive.bytes_max")
