"""Demonstrations for the warm-up: conversations of a careless clerk.

The clerk knows how a look-up is written and that each one starts from what the last one found, but
is careless about everything that decides: which field to ask for and when to stop. Training on it
gives a model that speaks the format and solves little, which is where reinforcement learning
begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct, convert

from milepost.configs.recipes.lookup.directory import (
    FIELDS,
    HELD_OUT_SUBJECTS,
    HOPS_MAX,
    TRAINING_SUBJECTS,
    Directory,
    Question,
    draw_question,
    prompt_of,
)
from milepost.configs.seeds import derive_seed
from milepost.messages.shared import ChatMessage, Prompt

HOPS_SHARES = (1, 2, 3)
"""Long paths come more often: one look-up is learned at once, where the third begins is not."""


class Clerk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How careless the clerk is."""

    smart: float = 0.25
    """Chance to ask for the right field; otherwise any field, the right one among them."""
    early: float = 0.25
    """Chance to make one look-up too few (but at least one)."""
    late: float = 0.25
    """Chance to make one too many."""
    conversations: int = 3000
    """How many conversations there are; the training goes over them several times."""


def converse(clerk: Clerk, question: Question, random: Random) -> list[ChatMessage]:
    """The clerk's whole conversation about a question, up to and with the answer."""
    directory = Directory(question.directory_seed)
    messages: list[ChatMessage] = [{"role": "user", "content": question.text}]
    value, hops = question.subject, len(question.path)
    luck = random.random()
    num_calls = max(1, hops - 1) if luck < clerk.early else hops + (luck > 1 - clerk.late)
    for number in range(num_calls):
        knows = number < hops and random.random() < clerk.smart
        field = question.path[number] if knows else random.choice(FIELDS)
        messages.append(_call(f"call-{number}", value, field))
        value = directory.lookup(value, field)
        messages.append({"role": "tool", "tool_call_id": f"call-{number}", "content": value})
    messages.append({"role": "assistant", "content": value})
    return messages


def _call(call_id: str, name: str, field: str) -> ChatMessage:
    function = {"name": "lookup", "arguments": json.dumps({"name": name, "field": field})}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def demonstrations(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source of the warm-up: complete conversations.

    Args:
        split: `train` or `held_out`: who the questions are about.
        seed: of questions and carelessness.
        options: fields of `Clerk`.

    Raises:
        ValueError: another split.
        msgspec.ValidationError: an option that is no field of `Clerk`.
    """
    subjects = {"train": TRAINING_SUBJECTS, "held_out": HELD_OUT_SUBJECTS}.get(split)
    if subjects is None:
        raise ValueError(f"split {split!r} does not exist: use train or held_out")
    return _demonstrations(split, seed, convert(options, Clerk), subjects)


def _demonstrations(
    split: str, seed: int, clerk: Clerk, subjects: tuple[str, ...]
) -> Iterator[Prompt]:
    random = Random(derive_seed(seed, "lookup", "clerk", split))
    for number in range(clerk.conversations):
        (hops,) = random.choices(range(1, HOPS_MAX + 1), HOPS_SHARES)
        question = draw_question(random, subjects, hops)
        asked = prompt_of(f"clerk-{split}-{number}", question)
        yield Prompt(
            prompt_id=asked.prompt_id,
            messages=converse(clerk, question, random),
            label=asked.label,
            metadata=asked.metadata,
            tools=asked.tools,
        )
