"""The island with a hidden treasure, and where hunts start.

A hunt starts up to two steps away from the treasure in each direction: 24 starts, 6 of which never
occur in training. The agent moves one step a turn, is told after each where the treasure lies now
("2 east, 1 north"), and must dig when it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct, convert

from milepost.configs.seeds import derive_seed
from milepost.messages.shared import Prompt

Offset: TypeAlias = tuple[int, int]
"""The treasure seen from the agent: steps to the east, steps to the north."""

DIRECTIONS: dict[str, Offset] = {"east": (1, 0), "west": (-1, 0), "north": (0, 1), "south": (0, -1)}
REACH = 2
STARTS: tuple[Offset, ...] = tuple(
    (east, north)
    for east in range(-REACH, REACH + 1)
    for north in range(-REACH, REACH + 1)
    if (east, north) != (0, 0)
)
HELD_OUT_STARTS: tuple[Offset, ...] = ((0, -1), (2, 0), (-1, 1), (1, 2), (-2, -1), (-2, 2))
TRAINING_STARTS = tuple(start for start in STARTS if start not in HELD_OUT_STARTS)
TURNS_TO_SPARE = 1
HERE, FOUND, NOTHING = "here", "found", "nothing"
VALUES = (*DIRECTIONS, *"123456", HERE, FOUND, NOTHING)


class Sizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many hunts there are."""

    train: int = 1024
    held_out: int = 256


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Go one step.",
            "parameters": {
                "type": "object",
                "properties": {"direction": {"type": "string", "enum": list(DIRECTIONS)}},
                "required": ["direction"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "dig",
            "description": "Dig here.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


def distance(offset: Offset) -> int:
    """Steps to the treasure."""
    return abs(offset[0]) + abs(offset[1])


def moved(offset: Offset, direction: str) -> Offset:
    """Where the treasure lies after one step.

    Raises:
        KeyError: there is no such direction.
    """
    east, north = DIRECTIONS[direction]
    return offset[0] - east, offset[1] - north


def turns_max(start: Offset) -> int:
    """Replies of the agent in one episode: the steps, the digging, and one to spare."""
    return distance(start) + 1 + TURNS_TO_SPARE


def hint(offset: Offset) -> str:
    """What the agent is told about where the treasure lies."""
    east, north = offset
    parts = []
    if east:
        parts.append(f"{abs(east)} {'east' if east > 0 else 'west'}")
    if north:
        parts.append(f"{abs(north)} {'north' if north > 0 else 'south'}")
    return ", ".join(parts) or HERE


def prompt_of(prompt_id: str, start: Offset) -> Prompt:
    """The hunt that begins at `start` as a prompt."""
    return Prompt(
        prompt_id=prompt_id,
        messages=[{"role": "user", "content": f"Find the treasure: {hint(start)}."}],
        metadata={
            "start": list(start),
            "hops": distance(start),
            "category": f"{distance(start)} step{'s' * (distance(start) > 1)} away",
        },
        tools=TOOLS,
    )


def start_of(prompt: Prompt) -> Offset:
    """Where the hunt of a prompt made by `prompt_of` begins.

    Raises:
        ValueError: the metadata are not a hunt's.
    """
    match prompt.metadata.get("start"):
        case [int(east), int(north)]:
            return east, north
        case start:
            raise ValueError(f"prompt {prompt.prompt_id}: start {start!r} is not two numbers")


def starts_of(split: str) -> tuple[Offset, ...]:
    """The starts of a split.

    Raises:
        ValueError: another split than `train` or `held_out`.
    """
    match split:
        case "train":
            return TRAINING_STARTS
        case "held_out":
            return HELD_OUT_STARTS
        case _:
            raise ValueError(f"split {split!r} does not exist: use train or held_out")


def prompts(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source: hunts from the split's starts.

    The held-out hunts go through their starts in turn, the same for every seed.

    Args:
        split: `train` or `held_out`.
        seed: of the order of the training hunts.
        options: `train` and `held_out`: how many hunts each split has (1024, 256).

    Raises:
        ValueError: another split.
        msgspec.ValidationError: another option.
    """
    starts, sizes = starts_of(split), convert(options, Sizes)
    if split == "held_out":
        return (
            prompt_of(f"{split}-{number}", starts[number % len(starts)])
            for number in range(sizes.held_out)
        )
    random = Random(derive_seed(seed, "hunt", split))
    return (prompt_of(f"{split}-{number}", random.choice(starts)) for number in range(sizes.train))
