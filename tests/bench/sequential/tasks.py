"""The two tasks behind one interface; prompts, environments and demonstrations are the recipes'."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import Struct

from milepost.configs.recipes.hunt import clerk as hunt_clerk
from milepost.configs.recipes.hunt import environment as hunt_environment
from milepost.configs.recipes.hunt import island
from milepost.configs.recipes.hunt import model as hunt_model
from milepost.configs.recipes.lookup import clerk, directory, environment, model
from milepost.messages.shared import ChatMessage, Prompt


class Environment(Protocol):
    """What an episode needs of a task."""

    def react(self, message: ChatMessage) -> list[ChatMessage]:
        """Tool results, or nothing at the end."""

    @property
    def reward(self) -> float:
        """Of the episode so far."""

    @property
    def solved(self) -> bool:
        """The episode counts as a success."""


Source = Callable[[str, int, dict[str, Any]], Iterable[Prompt]]


class Task(Struct, frozen=True, kw_only=True):
    """One task and the settings of its warm-up."""

    create: Callable[[str, int, dict[str, Any]], None]
    prompts: Source
    demonstrations: Source
    environment: Callable[[Prompt], Environment]
    clerk: dict[str, Any]
    warmup_lr: float
    warmup_batch: int
    warmup_steps: int
    steps: int


TASKS = {
    "lookup": Task(
        create=model.create,
        prompts=directory.prompts,
        demonstrations=clerk.demonstrations,
        environment=environment.LookupEnvironment,
        clerk={},
        warmup_lr=5e-3,
        warmup_batch=16,
        warmup_steps=900,
        steps=80,
    ),
    "hunt": Task(
        create=hunt_model.create,
        prompts=island.prompts,
        demonstrations=hunt_clerk.demonstrations,
        environment=hunt_environment.HuntEnvironment,
        clerk={},
        warmup_lr=3e-3,
        warmup_batch=8,
        warmup_steps=900,
        steps=50,
    ),
}
