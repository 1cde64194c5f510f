"""Tasks of reasoning-gym: one question, one answer, the task's own score.

Extra `reasoning-gym`. In a topology:

    [data]
    prompts = "milepost.actors.agent.connectors.reasoning_gym:prompts"
    options = { task = "chain_sum", config = { min_terms = 2, max_terms = 2 } }

    [actors.agent]
    agent = "milepost.actors.agent.connectors.reasoning_gym:ReasoningGymAgent"
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import reasoning_gym
from msgspec import Struct, convert

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.configs.seeds import derive_seed
from milepost.messages.shared import ChatMessage, Prompt


class Tasks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`data.options`: which task, and how many questions of it."""

    task: str
    """Name of a dataset of reasoning-gym (`chain_sum`, `leg_counting`, ...)."""
    config: dict[str, Any] = {}
    """Its settings, without size and seed."""
    train: int = 2048
    held_out: int = 256
    right: float = 0.3
    """`demonstrations` only: share of right answers; the others are answers to other questions."""


def prompts(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source: questions of one task.

    Args:
        split: `train` or `held_out`; their questions are drawn from different seeds.
        seed: of the questions.
        options: fields of `Tasks`.

    Raises:
        ValueError: another split, or no such task.
        msgspec.ValidationError: an option that is no field of `Tasks`.
    """
    tasks = convert(options, Tasks)
    for number, entry in enumerate(_entries(tasks, split, seed)):
        yield Prompt(
            prompt_id=f"{tasks.task}-{split}-{number}",
            messages=[{"role": "user", "content": entry["question"]}],
            label=entry["answer"],
            metadata={"entry": entry, "category": tasks.task},
        )


def demonstrations(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The same questions with answers, most of them wrong: a warm-up that teaches the form only.

    Raises:
        As `prompts`.
    """
    tasks = convert(options, Tasks)
    entries = list(_entries(tasks, split, seed))
    random = Random(derive_seed(seed, "reasoning_gym", split))
    for asked in prompts(split, seed, options):
        is_right = random.random() < tasks.right
        answer = asked.label if is_right else random.choice(entries)["answer"]
        said: ChatMessage = {"role": "assistant", "content": answer}
        yield Prompt(prompt_id=asked.prompt_id, messages=[*asked.messages, said], label=asked.label)


def _entries(tasks: Tasks, split: str, seed: int) -> Iterator[dict[str, Any]]:
    sizes = {"train": tasks.train, "held_out": tasks.held_out}
    if split not in sizes:
        raise ValueError(f"split {split!r} does not exist: use train or held_out")
    drawn = derive_seed(seed, "reasoning_gym", tasks.task, split) % 2**31
    found = reasoning_gym.create_dataset(tasks.task, size=sizes[split], seed=drawn, **tasks.config)
    # Only JSON travels with a prompt: tuples and the like become what they are there.
    yield from (msgspec.json.decode(msgspec.json.encode(dict(entry))) for entry in found)


class ReasoningGymAgent(Agent):
    """Asks once; the task scores the answer."""

    async def start(self) -> None:
        """Find the task's scorer."""
        tasks = convert(self.data_options, Tasks)
        self._task = reasoning_gym.create_dataset(tasks.task, size=1, seed=0, **tasks.config)

    async def run(self, episode: Episode) -> None:
        """One question."""
        reply = await episode.chat(episode.prompt.messages)
        answer = reply.text.strip()
        score = float(self._task.score_answer(answer, episode.metadata["entry"]))
        episode.report(reward=score, metrics={"solved": float(score >= 1.0)})
