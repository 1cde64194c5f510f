"""OpenEnv as it comes: a server that the agent starts, a session an episode, and the recipe."""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random
from typing import Any

import psutil
import pytest
from unit.agent.kit import ScriptedLine, order, refused, reply

from milepost.actors.agent import Episode
from milepost.actors.agent.connectors.openenv import OpenEnvAgent, OpenEnvError
from milepost.configs.recipes.hunt.clerk import Clerk, converse
from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.configs.recipes.hunt.island import prompts

pytestmark = pytest.mark.timeout(500)
SERVER = "milepost.configs.recipes.hunt.openenv_server:app"


async def test_episodes_in_the_server_come_out_as_they_do_without_one() -> None:
    """The same replies on the same islands, over the package's client and server, eight at once.

    The server ends with the agent.
    """
    agent = OpenEnvAgent(serve=SERVER, action_is_message=True, reward_is_last=True)
    await agent.start()
    assert agent._server is not None
    server = psutil.Process(agent._server.pid)
    episodes, expected = [], []
    for number, prompt in enumerate(islice(prompts("train", 0, {}), 8)):
        told = converse(Clerk(), prompt, Random(number))
        said = [message for message in told if message["role"] == "assistant"]
        world = HuntEnvironment(prompt)
        for message in said:
            world.react(message)
        expected.append((world.reward, world.metrics))
        replies = [reply("", message=message) for message in said]
        line = ScriptedLine(*replies, refused("limit", "turns_max"))
        episodes.append(Episode(order(prompt=prompt), line))
    try:
        await asyncio.gather(*map(agent.run, episodes))
    finally:
        await agent.stop()
    assert [(one.record.reward, one.record.metrics) for one in episodes] == expected
    assert len({reward for reward, _ in expected}) > 1
    assert not server.is_running()


async def test_a_server_that_does_not_come_up_is_named() -> None:
    agent = OpenEnvAgent(serve="milepost.configs.recipes.hunt.openenv_server:nothing")
    with pytest.raises(OpenEnvError, match="does not come up: it ended with code"):
        await agent.start()
    await agent.stop()


def test_the_recipe_trains(train: Any) -> None:
    create = "milepost.configs.recipes.hunt.model:create"
    more = "[system.timeouts]\nhello_s = 120.0\nready_s = 120.0"
    summary, steps = train("hunt_openenv", create=create, more=more)
    assert (summary["status"], len(steps)) == ("done", 2)
    assert summary["scores"]["after"]["sampled"]["num_episodes"] == 2
