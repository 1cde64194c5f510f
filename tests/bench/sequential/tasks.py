"""The two tasks: prompts, demonstrations, environments and every setting are the recipes' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from typing import Any, Protocol

from milepost.configs.actors import TrainerConfig
from milepost.configs.load import load_topology
from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.configs.recipes.lookup.environment import LookupEnvironment
from milepost.configs.run import DataConfig
from milepost.configs.topology import Topology
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


Environments = Callable[[Prompt], Environment]
ENVIRONMENTS: dict[str, Environments] = {"lookup": LookupEnvironment, "hunt": HuntEnvironment}


class Task:
    """A recipe and the recipe of its warm-up."""

    def __init__(self, recipe: str) -> None:
        self.recipe = load_topology(recipe)
        assert self.recipe.model is not None
        self.warmup = load_topology(self.recipe.model.made_by)
        self.environment = ENVIRONMENTS[recipe]

    def create(self, folder: str, seed: int) -> None:
        """Write the fresh checkpoint that the warm-up starts from."""
        model = self.warmup.model
        assert model is not None
        resolve_name(model.create)(folder, seed, model.create_options)

    def prompts(self, split: str, seed: int) -> Iterable[Prompt]:
        """Prompts to reinforce and to evaluate on."""
        return _read(self.recipe, split, seed)

    def demonstrations(self, seed: int) -> Iterable[Prompt]:
        """Conversations to warm up on."""
        return _read(self.warmup, "train", seed)


def trainer_of(topology: Topology) -> TrainerConfig:
    """The optimizer's settings."""
    assert topology.actors.trainer is not None
    return topology.actors.trainer


def _read(topology: Topology, split: str, seed: int) -> Iterable[Prompt]:
    data: DataConfig | None = topology.data
    assert data is not None
    options: dict[str, Any] = data.options
    prompts: Iterable[Prompt] = resolve_name(data.prompts)(split, seed, options)
    return prompts
