"""Checks of the files that a topology names."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from milepost.actors.rollout.prompts import PromptError, is_file, load_prompts
from milepost.configs.problem import Problem
from milepost.configs.system import BusConfig
from milepost.messages.errors import ProtocolError
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Prompt
from milepost.messages.structure import check_depth, check_structure
from milepost.supervisor.checks.check import Finding, Note, Subject
from milepost.supervisor.checks.kept import others

LEVELS_AROUND: Final = 4
"""Of a message around the prompt in it."""
BYTES_AROUND: Final = 1 << 14
ITEMS_AROUND: Final = 1 << 10


def prompts_are_readable(subject: Subject) -> Iterator[Finding]:
    """A bad line of the prompt file that is met only when its turn comes; a resume with others."""
    data, evaluator = subject.topology.data, subject.topology.actors.evaluator
    if data is None:
        return
    sources = [("$.data.prompts", data.prompts, "train")]
    if evaluator is not None:
        sources.append(("$.data.held_out_prompts", data.held_out_prompts, "held_out"))
    for where, source, split in sources:
        if not is_file(source):
            continue
        try:
            prompts = load_prompts(source, split, subject.topology.run.seed, data.options)
        except PromptError as error:
            yield Problem(str(error), where, "repair the file; docs/topology.md shows one")
            continue
        for prompt in prompts:
            if what := too_much(prompt, subject.topology.system.bus):
                yield Problem(f'prompt "{prompt.prompt_id}": {what}', where, "make it smaller")
                break
        else:
            used = (
                prompts if split == "train" or not evaluator else prompts[: evaluator.prompts_max]
            )
            yield from others(subject, split, where, source, used)


def too_much(prompt: Prompt, bus: BusConfig) -> str:
    """Why a message of the run cannot carry it; empty when one can."""
    bytes_max, items_max = bus.body_bytes_max, BusLimits().items_max
    # A session hears its texts again in each turn, with what was said since; the agent hears the
    # rest once.
    said = (prompt.messages, prompt.tools)
    try:
        _judge(said, bus, bytes_max=bytes_max // 2, items_max=items_max // 2)
        _judge(prompt, bus, bytes_max=bytes_max - BYTES_AROUND, items_max=items_max - ITEMS_AROUND)
    except ProtocolError as error:
        return str(error)
    except OverflowError:
        return "a number in it has more than 64 bits"
    except UnicodeEncodeError as error:
        return f"a text in it is not UTF-8: {error}"
    except RecursionError:
        return "nested too deep to be sent"
    return ""


def _judge(value: object, bus: BusConfig, *, bytes_max: int, items_max: int) -> None:
    """Refuse what the bus would refuse as a part of a message."""
    body = msgspec.msgpack.encode(value)
    depth_max = bus.depth_max - LEVELS_AROUND
    if check_structure(body, bytes_max=bytes_max, depth_max=depth_max, items_max=items_max):
        check_depth(msgspec.msgpack.decode(body), depth_max)


def held_out_is_apart(subject: Subject) -> Iterator[Finding]:
    """A score on prompts that were trained on, which looks like success."""
    data = subject.topology.data
    if data is None or subject.topology.actors.evaluator is None:
        return
    if not (is_file(data.prompts) and is_file(data.held_out_prompts)):
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
