"""The conformance kit: a good agent passes every check; each check has an agent that fails it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from milepost.actors.agent import Agent, ChatError, Episode, LimitReached
from milepost.actors.agent.conformance import checks
from milepost.actors.agent.conformance.bench import Bench
from milepost.actors.agent.conformance.checks import CHECKS, Check
from milepost.actors.agent.conformance.harness import HarnessSession
from milepost.actors.agent.conformance.script import Conversation, Say
from milepost.actors.agent.episodes import Rewards
from milepost.actors.effects import Received, Request
from milepost.actors.session.doors import DOOR, DoorTurn
from milepost.actors.session.history import Replayed
from milepost.configs.recipes.lookup.agent import LookupAgent
from milepost.configs.recipes.lookup.directory import prompts
from milepost.configs.run import RunConfig
from milepost.configs.topology import Topology
from milepost.messages.shared import Prompt

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}
QUESTION = {"role": "user", "content": "Where?"}


def bench(agent: Agent) -> Bench:
    prompt = Prompt(prompt_id="p", messages=[QUESTION], tools=[TOOL])
    topology = Topology(run=RunConfig(name="t", steps=1))
    return Bench(agent, [prompt], Rewards(None, None, 0.0), topology)


async def problems(check: Check, agent: Agent) -> str:
    return "\n".join([problem async for problem in check(bench(agent))])


class Good(Agent):
    """Asks twice, reports before each chat."""

    async def run(self, episode: Episode) -> None:
        messages: list[Any] = list(episode.prompt.messages)
        for number in range(2):
            episode.report(reward=float(number))
            reply = await episode.chat(messages)
            messages += [reply.message, *(call.result("here") for call in reply.tool_calls)]
            messages += [] if reply.tool_calls else [QUESTION]
        episode.report(reward=2.0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_good_agent_passes(check: Check) -> None:
    assert await problems(check, Good()) == ""


async def test_the_agent_of_the_quick_start_passes_with_its_own_prompts() -> None:
    given = list(prompts("train", 0, {}))[:4]
    topology = Topology(run=RunConfig(name="t", steps=1))
    agent = LookupAgent()
    agent.data_options = {}
    found = []
    kit = Bench(agent, given, Rewards(None, None, 0.0), topology)
    for check in CHECKS:
        found += [problem async for problem in check(kit)]
    assert found == []


class NoReward(Good):
    async def run(self, episode: Episode) -> None:
        await episode.chat(episode.prompt.messages)


class TrustsArguments(Good):
    async def run(self, episode: Episode) -> None:
        episode.report(reward=0.0)
        reply = await episode.chat(episode.prompt.messages)
        for call in reply.tool_calls:
            assert call.arguments is not None
            call.arguments["where"]


class TrustsWords(Good):
    async def run(self, episode: Episode) -> None:
        reply = await episode.chat(episode.prompt.messages)
        episode.report(reward=float(len(reply.text.split()[0])))


class ReportsLate(Good):
    async def run(self, episode: Episode) -> None:
        reply = await episode.chat(episode.prompt.messages)
        await episode.chat([*episode.prompt.messages, reply.message, QUESTION])
        episode.report(reward=1.0)


class AsksOn(Good):
    async def run(self, episode: Episode) -> None:
        while True:
            try:
                episode.report(reward=0.0)
                await episode.chat(episode.prompt.messages)
            except LimitReached:
                pass
            except ChatError as error:
                if "chats in one episode" not in str(error):
                    continue
            return


class Rewrites(Good):
    async def run(self, episode: Episode) -> None:
        episode.report(reward=0.0)
        reply = await episode.chat(episode.prompt.messages)
        said = {**reply.message, "content": "something else"}
        await episode.chat([*episode.prompt.messages, said, QUESTION])


class OwnDice(Good):
    async def run(self, episode: Episode) -> None:
        episode.report(reward=0.0)
        await episode.chat([{"role": "user", "content": str(random.random())}])


class Blocks(Good):
    async def run(self, episode: Episode) -> None:
        if episode.trajectory_id == "check.7":
            until_s = time.thread_time() + 1.2
            while time.thread_time() < until_s:
                pass
        await super().run(episode)


class Deaf(Good):
    async def run(self, episode: Episode) -> None:
        episode.report(reward=0.0)
        try:
            await episode.chat(episode.prompt.messages)
        except asyncio.CancelledError:
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("check", "agent", "told"),
    [
        (checks.ends_with_a_reward, NoReward(), "the agent reported no reward"),
        (checks.tool_calls_are_answered, TrustsArguments(), "arguments that are no JSON: failed"),
        (checks.odd_words_are_survived, TrustsWords(), "an empty reply: failed: IndexError"),
        (checks.truncation_keeps_its_reward, ReportsLate(), "let LimitReached end the episode"),
        (checks.engine_errors_fail, AsksOn(), "times more after the engine's error"),
        (checks.the_seed_decides, OwnDice(), "draw from episode.random only"),
        (checks.many_run_at_once, Blocks(), "the event loop was held for"),
    ],
)
async def test_each_check_finds_its_fault(check: Check, agent: Agent, told: str) -> None:
    assert told in await problems(check, agent)


async def test_what_holds_the_loop_is_no_fault_of_an_agent_that_runs_elsewhere() -> None:
    """To start a process holds it as long as a busy machine likes."""
    kit = bench(Blocks())
    kit.is_elsewhere = True
    assert [problem async for problem in checks.many_run_at_once(kit)] == []


async def test_a_history_that_was_rewritten_is_found_in_whatever_episode_it_was() -> None:
    kit = bench(Rewrites())
    async for _ in checks.ends_with_a_reward(kit):
        pass
    [fault] = [problem async for problem in checks.histories_append(kit)]
    assert fault.startswith("not_append_only: ")


async def test_code_that_swallows_its_cancellation_is_found(monkeypatch: Any) -> None:
    monkeypatch.setattr("milepost.actors.agent.episodes.GRACE_S", 0.05)
    monkeypatch.setattr("milepost.actors.agent.conformance.checks.GRACE_S", 0.04)
    assert "let CancelledError pass" in await problems(checks.cancellation_is_obeyed, Deaf())


class Idle:
    """A core that orders nothing."""

    def handle(self, event: Any, now_s: float) -> list[Any]:
        del event, now_s
        return []


async def test_each_request_through_the_door_is_kept_as_it_was() -> None:
    """The door's list grows with the client's next request; a check asks what the first one was."""
    nothing: Any = Idle()
    session = HarnessSession(nothing)
    session.core = nothing
    seen = session.conversations["g.0"] = Conversation(lambda *_: Say("no"), 9)
    said = Replayed([QUESTION])
    for number in range(2):
        turn = DoorTurn(trajectory_id="g.0", messages=said, tools=[])
        session.feed(Received(DOOR, turn, Request(DOOR, number)))
        said += [{"role": "assistant", "content": "Here."}, QUESTION]
    assert [len(turn.messages) for turn in seen.requests] == [1, 3]
