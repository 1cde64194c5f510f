"""What user code can do with an episode, and what it gets when that cannot be done."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest
from unit.agent.kit import QUESTION, ScriptedLine, order, refused, reply

from milepost.actors.agent import (
    Episode,
    EpisodeStopped,
    FinishReason,
    LimitReached,
    Part,
    Reply,
    RequestRefused,
    ServiceFailed,
)
from milepost.actors.agent.outcome import Ending, truncated_by
from milepost.messages.shared import Prompt

CALLS = {
    "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "oops"}},
    ]
}


async def test_a_chat_carries_the_history_and_the_attempt_and_reads_the_reply() -> None:
    """The message goes back unchanged in the next request; calls come parsed, and as sampled."""
    line = ScriptedLine(reply("", message=CALLS))
    episode = Episode(order(attempt=2), line)
    answer = await episode.chat([QUESTION], tokens_max=9)
    (turn,) = line.turns
    assert (turn.trajectory_id, turn.attempt, turn.tokens_max) == ("g.0", 2, 9)
    assert turn.messages == [QUESTION]
    first, second = answer.tool_calls
    assert (first.name, first.arguments, first.arguments_text) == ("f", {"a": 1}, '{"a": 1}')
    assert (second.name, second.arguments, second.arguments_text) == ("g", None, "oops")
    assert first.result("x") == {"role": "tool", "tool_call_id": "c0", "content": "x"}
    assert (answer.text, answer.versions, answer.finish_reason) == ("", (3,), FinishReason.STOP)
    assert episode.record.conversation == [QUESTION, answer.message]


async def test_tools_are_the_prompt_s_unless_given() -> None:
    """They are part of the history, so the default must not change from turn to turn."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    line = ScriptedLine(reply(), reply(), reply())
    episode = Episode(order(prompt=Prompt(prompt_id="p", messages=[QUESTION], tools=tools)), line)
    await episode.chat([QUESTION])
    await episode.chat([QUESTION], tools=[])
    assert [turn.tools for turn in line.turns] == [tools, []]


def test_an_episode_knows_its_prompt_and_has_a_random_generator_of_its_own() -> None:
    """Members of a group share the seed, and so the environment; a retry repeats it."""
    episode = Episode(order(seed=11), ScriptedLine())
    assert (episode.label, episode.metadata, episode.seed) == ("cat", {"hops": 1}, 11)
    assert episode.random.random() == random.Random(11).random()


@pytest.mark.parametrize(
    ("answer", "error", "record"),
    [
        (refused("limit", "turns_max"), LimitReached, {"limit": "turns_max"}),
        (refused("truncated"), LimitReached, {"limit": "reply_tokens_max"}),
        (refused("not_append_only"), RequestRefused, {}),
        (refused("bad_request"), RequestRefused, {}),
        (refused("closed"), EpisodeStopped, {"stopped": "because of closed"}),
        (refused("engine"), ServiceFailed, {"service_fault": "engine: because of engine"}),
        (refused("unknown_session"), ServiceFailed, {}),
        (refused("internal"), ServiceFailed, {}),
        (ServiceFailed("no answer"), ServiceFailed, {"service_fault": "no answer"}),
    ],
)
async def test_each_refusal_is_an_exception_of_its_own(
    answer: Any, error: type[Exception], record: dict[str, Any]
) -> None:
    """And is remembered: code that catches everything must not turn a fault into a reward."""
    episode = Episode(order(), ScriptedLine(answer))
    with pytest.raises(error):
        await episode.chat([QUESTION])
    assert {name: getattr(episode.record, name) for name in record} == record
    assert episode.record.num_turns == 0


@pytest.mark.parametrize("limit", ["", "tokens_max"])
async def test_only_a_bound_of_the_run_makes_a_reply_that_was_cut_off_truncated(limit: str) -> None:
    """The session names it; an agent that keeps a side question short has lost nothing."""
    cut = reply("ca", finish_reason=FinishReason.LENGTH, limit=limit)
    episode = Episode(order(), ScriptedLine(cut, refused("truncated"), reply()))
    answer = await episode.chat([QUESTION], tokens_max=1)
    assert (answer.finish_reason, answer.limit) == (FinishReason.LENGTH, limit)
    assert truncated_by(Ending(), episode.record) == limit
    with pytest.raises(LimitReached) as raised:
        await episode.chat([QUESTION, answer.message, QUESTION])
    assert raised.value.limit == (limit or "reply_tokens_max")
    await episode.chat([QUESTION])
    assert truncated_by(Ending(), episode.record) == ""


async def test_a_fault_that_was_overcome_is_forgotten() -> None:
    """The agent asked again, and was served."""
    episode = Episode(order(), ScriptedLine(ServiceFailed("no answer"), reply()))
    with pytest.raises(ServiceFailed):
        await episode.chat([QUESTION])
    await episode.chat([QUESTION])
    assert episode.record.service_fault == ""


def numpy_half() -> Any:
    """What array code hands on as a number."""
    return np.float32(0.5)


class Unreadable:
    """Raises what a tensor of two values does."""

    def __float__(self) -> float:
        raise RuntimeError("no single value")


def test_the_last_report_counts() -> None:
    """An agent may report what it has so far before each step that may be its last."""
    episode = Episode(order(), ScriptedLine())
    episode.report(reward=0, metrics={"solved": False})
    episode.report(reward=numpy_half(), metrics={"solved": True}, info={"notes": ["a"]})
    record = episode.record
    assert (record.reward, record.metrics, record.info) == (0.5, {"solved": 1.0}, {"notes": ["a"]})
    episode.report(info={"notes": []})
    assert record.reward == 0.5


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"reward": math.nan}, ValueError, "reward is nan"),
        ({"reward": -math.inf}, ValueError, "reward is -inf"),
        ({"reward": 10**400}, ValueError, "reward is too large for a float"),
        ({"reward": 1e200}, ValueError, "reward is 1e+200, its magnitude may be 1e+30 at most"),
        ({"reward": 1.0, "metrics": {"x": -2e30}}, ValueError, "metric x is -2e+30"),
        ({"reward": Unreadable()}, RuntimeError, "no single value"),
        ({"reward": "1"}, TypeError, "reward is '1', a number is needed"),
        ({"reward": 1.0, "metrics": {"x": math.nan}}, ValueError, "metric x is nan"),
        ({"reward": 1.0, "metrics": {"x": None}}, TypeError, "metric x is None"),
        ({"reward": 1.0, "info": {"x": object()}}, TypeError, "object"),
    ],
)
def test_a_report_that_cannot_be_used_is_remembered(
    fields: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Also when the agent's code swallows the exception."""
    episode = Episode(order(), ScriptedLine())
    with pytest.raises(error, match=re.escape(told)):
        episode.report(**fields)
    assert told in episode.record.bad_report


async def test_a_streamed_reply_comes_in_parts_that_add_up_and_as_a_whole_last() -> None:
    episode = Episode(order(), ScriptedLine(reply("cat")))
    pieces = [piece async for piece in episode.stream([QUESTION])]
    assert "".join(part.content for part in pieces[:-1] if isinstance(part, Part)) == "cat"
    assert isinstance(pieces[-1], Reply)
    assert pieces[-1].text == "cat"
    assert episode.record.num_turns == 1


async def test_a_stream_raises_what_a_chat_raises() -> None:
    episode = Episode(order(), ScriptedLine(refused("limit", "turns_max")))
    with pytest.raises(LimitReached):
        [piece async for piece in episode.stream([QUESTION])]
