"""The agent that the documentation shows works as it is printed."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from unit.agent.kit import ScriptedLine, order, refused, reply

from milepost.actors.agent import Agent, Episode
from milepost.actors.agent.outcome import Ending, judge
from milepost.messages.shared import Status

PAGE = Path(__file__).parents[3] / "docs" / "writing-an-agent.md"


def documented_agent() -> Agent:
    """The class of the page's first example."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index("    from milepost import")
    end = text.index("\nName it in the topology")
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(text[start:end]), str(PAGE), "exec"), names)
    made: Agent = names["Guesser"](guesses=3)
    return made


@pytest.mark.parametrize(
    ("answers", "status", "reward", "metrics"),
    [
        (["SECRET"], Status.COMPLETED, 1.0, {"solved": 1.0, "guesses": 1.0}),
        (["none", "0", "999"], Status.COMPLETED, 0.0, {"solved": 0.0, "guesses": 2.0}),
        (["0", "LIMIT"], Status.TRUNCATED, 0.0, {"solved": 0.0, "guesses": 1.0}),
    ],
)
async def test_the_documented_agent_guesses(
    answers: list[str], status: Status, reward: float, metrics: dict[str, float]
) -> None:
    """Right, wrong to the end, and out of turns."""
    line = ScriptedLine()
    episode = Episode(order(), line)
    secret = Episode(order(), line).random.randint(1, 100)
    for answer in answers:
        text = answer.replace("SECRET", str(secret))
        line.answers.append(refused("limit", "turns_max") if answer == "LIMIT" else reply(text))
    await documented_agent().run(episode)
    ended = judge(order(), Ending(), episode.record, 0.0)
    assert (ended.status, ended.reward, ended.metrics) == (status, reward, metrics)
    hints = [turn.messages[-1]["content"] for turn in line.turns[1:]]
    assert hints == ["too low"] * len(hints)
