"""verifiers as it comes: its rollout over the HTTP door, its rubric as reward, and the recipe."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.agent.kit import ScriptedLine, order

from milepost.actors.agent import Episode
from milepost.actors.agent.connectors.verifiers import VerifiersAgent, VerifiersError, prompts

pytestmark = pytest.mark.timeout(500)
OPTIONS: dict[str, Any] = {
    "environment": "milepost.configs.recipes.arithmetic.verifiers_environment:load_environment",
    "train": 16,
    "held_out": 8,
}


def test_rows_of_the_environment_are_prompts() -> None:
    train = list(prompts("train", 7, OPTIONS))
    assert (len(train), len(list(prompts("held_out", 7, OPTIONS)))) == (16, 8)
    assert train[0].messages[-1]["role"] == "user"
    assert msgspec.json.decode(msgspec.json.encode(train[0].metadata)) == train[0].metadata
    with pytest.raises(ValueError, match="split 'test' does not exist"):
        list(prompts("test", 7, OPTIONS))


async def test_without_the_http_door_it_says_what_to_add() -> None:
    agent = VerifiersAgent()
    agent.data_options = OPTIONS
    await agent.start()
    [prompt, *_] = prompts("train", 7, OPTIONS)
    with pytest.raises(VerifiersError, match=r"add \[actors.session.http\]"):
        await agent.run(Episode(order(prompt=prompt), ScriptedLine()))


async def test_a_rollout_that_fails_is_no_sample() -> None:
    """Nobody listens at this address: the library's own error, never a reward of 0."""
    agent = VerifiersAgent()
    agent.data_options = OPTIONS
    await agent.start()
    [prompt, *_] = prompts("train", 7, OPTIONS)
    address = "http://127.0.0.1:9/sessions/x"
    with pytest.raises(VerifiersError, match="the rollout failed"):
        await agent.run(Episode(order(prompt=prompt, address=address), ScriptedLine()))


def test_the_recipe_trains(train: Any) -> None:
    """Conversations over HTTP count as those of any agent: turns, lengths, scores."""
    create = "milepost.configs.recipes.lookup.model:create"
    summary, steps = train("arithmetic_verifiers", create=create)
    assert (summary["status"], len(steps)) == ("done", 2)
    assert summary["scores"]["after"]["sampled"]["num_episodes"] == 2
