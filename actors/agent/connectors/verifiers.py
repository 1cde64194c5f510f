"""Environments of verifiers: its own rollout plays them, over the HTTP door of the session.

Extra `verifiers` (the releases of 0.1; later ones have another interface). Needs
`[actors.session.http]`, since the library brings its own client. In a topology:

    [data]
    prompts = "milepost.actors.agent.connectors.verifiers:prompts"
    options = { environment = "my_module:load_environment" }     # or the name of an installed one

    [actors.agent]
    agent = "milepost.actors.agent.connectors.verifiers:VerifiersAgent"
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec
import verifiers
from msgspec import Struct, convert
from verifiers.types import ClientConfig

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.messages.shared import Prompt

KEY_VARIABLE = "MILEPOST_UNUSED_KEY"
"""The client wants a key in some variable; the address is what opens the session."""


class VerifiersError(RuntimeError):
    """The environment failed; its rollout is no sample."""


class Environments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`data.options`."""

    environment: str
    """`module:function`, or what `verifiers.load_environment` knows."""
    arguments: dict[str, Any] = {}
    train: int = 1024
    held_out: int = 256


def load(options: dict[str, Any]) -> Any:
    """The environment.

    Raises:
        msgspec.ValidationError: an option that is no field of `Environments`.
    """
    given = convert(options, Environments)
    module, colon, name = given.environment.partition(":")
    if colon:
        return getattr(import_module(module), name)(**given.arguments)
    return verifiers.load_environment(given.environment, **given.arguments)


def prompts(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source: rows of the environment's training or evaluation set.

    Raises:
        ValueError: another split.
        msgspec.ValidationError: an option that is no field of `Environments`.
    """
    environment, given = load(options), convert(options, Environments)
    match split:
        case "train":
            rows = environment.get_dataset(n=given.train, seed=seed)
        case "held_out":
            rows = environment.get_eval_dataset(n=given.held_out, seed=seed)
        case _:
            raise ValueError(f"split {split!r} does not exist: use train or held_out")
    for number, row in enumerate(rows):
        # Only JSON travels with a prompt.
        entry = msgspec.json.decode(msgspec.json.encode(dict(row)))
        yield Prompt(
            prompt_id=f"{split}-{number}",
            messages=entry["prompt"],
            label=entry.get("answer"),
            metadata={"row": entry},
        )


class VerifiersAgent(Agent):
    """Leaves an episode to the environment's own rollout."""

    async def start(self) -> None:
        """Load the environment."""
        self._environment = load(self.data_options)
        os.environ.setdefault(KEY_VARIABLE, "unused")

    async def run(self, episode: Episode) -> None:
        """One rollout.

        Raises:
            VerifiersError: no HTTP door, or the rollout failed.
        """
        if not episode.address:
            raise VerifiersError("sessions have no HTTP door, add [actors.session.http]")
        client = ClientConfig(
            client_type="openai_chat_completions",
            api_key_var=KEY_VARIABLE,
            api_base_url=f"{episode.address}/v1",
            max_retries=0,
        )
        row = episode.metadata["row"]
        names = ("prompt", "answer", "info", "example_id", "task")
        given = {name: row[name] for name in names if name in row}
        done = await self._environment.run_rollout(given, client, "policy", {})
        if done.get("error"):
            raise VerifiersError(f"the rollout failed: {done['error']}")
        reward = float(done["reward"])
        found = (done.get("metrics") or {}).items()
        metrics = {name: float(value) for name, value in found if value is not None}
        episode.report(reward=reward, metrics={"solved": float(reward >= 1.0), **metrics})
