"""Demonstrations for the warm-up: hunts of someone who listens to half of the hints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct, convert

from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.configs.recipes.hunt.island import (
    DIRECTIONS,
    Offset,
    distance,
    moved,
    prompt_of,
    start_of,
    starts_of,
)
from milepost.configs.seeds import derive_seed
from milepost.messages.shared import ChatMessage, Prompt


class Clerk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How careless the hunter is."""

    smart: float = 0.4
    """Chance to do what the hint says; otherwise anything, the right thing included."""
    conversations: int = 3000
    """How many hunts there are; the training goes over them several times."""


def converse(clerk: Clerk, prompt: Prompt, random: Random) -> list[ChatMessage]:
    """A whole hunt, up to and with the last tool call."""
    environment = HuntEnvironment(prompt)
    offset = start_of(prompt)
    messages = list(prompt.messages)
    while True:
        action = _action(clerk, offset, random)
        message = _call(f"call-{len(messages) // 2}", action)
        messages.append(message)
        results = environment.react(message)
        if not results:
            return messages
        messages += results
        offset = moved(offset, action) if action in DIRECTIONS else offset


def _action(clerk: Clerk, offset: Offset, random: Random) -> str:
    """A direction, or `dig`."""
    if random.random() >= clerk.smart:
        return random.choice((*DIRECTIONS, "dig"))
    if distance(offset) == 0:
        return "dig"
    nearer = [way for way in DIRECTIONS if distance(moved(offset, way)) < distance(offset)]
    return random.choice(nearer)


def _call(call_id: str, action: str) -> ChatMessage:
    name, arguments = ("dig", {}) if action == "dig" else ("move", {"direction": action})
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def demonstrations(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source of the warm-up: complete conversations.

    Args:
        split: `train` or `held_out`: where the hunts start.
        seed: of starts and carelessness.
        options: fields of `Clerk`.

    Raises:
        ValueError: another split.
        msgspec.ValidationError: an option that is no field of `Clerk`.
    """
    return _demonstrations(split, seed, convert(options, Clerk), starts_of(split))


def _demonstrations(
    split: str, seed: int, clerk: Clerk, starts: tuple[Offset, ...]
) -> Iterator[Prompt]:
    random = Random(derive_seed(seed, "hunt", "clerk", split))
    for number in range(clerk.conversations):
        hunt = prompt_of(f"clerk-{split}-{number}", random.choice(starts))
        yield Prompt(
            prompt_id=hunt.prompt_id,
            messages=converse(clerk, hunt, random),
            metadata=hunt.metadata,
            tools=hunt.tools,
        )
