"""The life of one trajectory out of the recordings of many actors."""

from __future__ import annotations

import random
from typing import Any

import pytest

from milepost.actors.recorder.describing import names_of
from milepost.actors.recorder.lines import Decision, Line, decode_lines, encode_lines, words_of
from milepost.actors.recorder.reading import Recording, tell_apart
from milepost.actors.recorder.tracing import about, behind_s, in_order, moments


def line(number: int, wall_s: float, **more: Any) -> Line:
    return Line(number, wall_s, wall_s, more.pop("kind", "received"), **more)


def recording(actor: str, *lines: Line, **about: Any) -> Recording:
    usual = {"actor": actor, "incarnation": 0, "host": "one", "run_id": "r", "started_s": 0.0}
    return Recording({**usual, **about}, list(lines))


def test_a_line_survives_its_bytes() -> None:
    told = Decision("tell", "buffer", "GroupOpened", "", 8, {"group_ids": ["g1", "g2"]}, 9, 1.5)
    one = line(3, 1.25, source="rollout", type="Batch", facts={"step": 1}, decisions=[told])
    assert decode_lines(encode_lines([one, one]), names_of) == [one, one]
    assert "received Batch from rollout (step 1) -> tell buffer GroupOpened" in words_of(one)


def test_siblings_are_left_out_and_the_group_is_not() -> None:
    lines = [
        line(0, 0.0, type="EpisodeEnded", facts={"trajectory_id": "g1.1"}),
        line(1, 1.0, type="EpisodeEnded", facts={"trajectory_id": "g1.10"}),
        line(2, 2.0, type="GroupStored", facts={"group_id": "g1"}),
        line(3, 3.0, type="Batch", facts={"trajectory_ids": ["g1.1", "g2.0"]}),
        line(
            4,
            4.0,
            type="TrajectoryFinished",
            facts={"trajectory_ids": ["g1.2"], "group_ids": ["g1"]},
        ),
        line(5, 5.0, kind="answered", key="generate/g1.1/0/1/1", type="Generated"),
        line(6, 6.0, type="CreditsGranted"),
    ]
    assert [each.number for each in about(lines, "g1.1")] == [0, 2, 3, 5]
    assert [each.number for each in about(lines, "g1")] == [0, 1, 2, 3, 4, 5]


def test_an_answer_without_names_belongs_to_its_question() -> None:
    asked = Decision("ask", "session-0", "OpenSessions", "open", 50, {"trajectory_ids": ["g1.0"]})
    other = Decision("ask", "session-0", "OpenSessions", "else", 51, {"trajectory_ids": ["g2.0"]})
    lines = [
        line(0, 0.0, type="CreditsGranted", decisions=[asked, other]),
        line(1, 1.0, kind="answered", key="open", type="SessionsOpened", cause=50),
        line(2, 1.0, kind="answered", key="else", type="SessionsOpened", cause=51),
    ]
    found = list(about(lines, "g1.0"))
    assert [each.number for each in found] == [0, 1]
    assert found[0].decisions == [asked], "what was decided about others is left out"


def test_what_was_decided_is_told_once() -> None:
    """Work has a key that speaks of it, and no names that speak of others."""
    work, wake = Decision("work", type="RunCode", key="run/g1.0/0"), Decision("wake", key="beat")
    told = line(0, 0.0, facts={"trajectory_id": "g1.0"}, decisions=[work, wake])
    (found,) = about([told], "g1.0")
    assert found.decisions == [work, wake]


@pytest.mark.parametrize("seed", range(20))
def test_causes_come_first_whatever_the_clocks_say(seed: int) -> None:
    """A message goes round many actors on hosts whose clocks are seconds apart."""
    chance = random.Random(seed)
    actors = [f"a{index}" for index in range(4)]
    skew = {actor: chance.uniform(-5, 5) for actor in actors}
    numbers = dict.fromkeys(actors, 0)
    lines: dict[str, list[Line]] = {actor: [] for actor in actors}
    order: list[tuple[str, int]] = []
    for hop in range(60):
        actor = chance.choice(actors)
        sent = Decision("tell", "next", "X", "", hop + 1, {"trajectory_id": "g1.0"})
        one = line(numbers[actor], hop * 0.01 + skew[actor], message_id=hop, decisions=[sent])
        lines[actor].append(one)
        order.append((actor, one.number))
        numbers[actor] += 1
    found = moments([recording(actor, *told, host=actor) for actor, told in lines.items()], "g1.0")
    assert [(each.recording.actor, each.line.number) for each in found] == order
    for (host, other), seconds in behind_s(found).items():
        assert seconds <= skew[other] - skew[host] + 1e-9, "never more than the truth"


def test_lines_without_causes_are_ordered_by_their_times() -> None:
    one = recording("a", line(0, 3.0, facts={"group_id": "g1"}))
    other = recording("b", line(0, 1.0, facts={"group_id": "g1"}))
    assert [each.recording.actor for each in moments([one, other], "g1")] == ["b", "a"]
    assert in_order([]) == []


def speaking(number: int, wall_s: float, message_id: int = 0, sends: int = 0) -> Line:
    """A line about `g1.0`, what it received and sent."""
    sent = Decision("tell", "next", "X", "", sends, {"trajectory_id": "g1.0"})
    facts = {"trajectory_id": "g1.0"}
    return line(
        number, wall_s, message_id=message_id, facts=facts, decisions=[sent] if sends else []
    )


def test_a_resumed_run_is_told_one_start_after_the_other() -> None:
    """Numbers begin at 0 again: what was trained stood above what was stored 15 minutes before."""
    first = {"run_id": "z", "started_s": 5.0}
    second = {"run_id": "a", "started_s": 800.0}
    every = [
        recording("buffer", speaking(3, 900.0), speaking(9, 901.0), **second),
        recording("buffer", speaking(500, 10.0), speaking(540, 11.0), **first),
        recording("rollout", speaking(520, 10.5), **first),
    ]
    tell_apart(every)
    told = [(each.recording.name, each.line.number) for each in moments(every, "g1.0")]
    one, two = "buffer (start 1)", "buffer (start 2)"
    assert told == [(one, 500), ("rollout (start 1)", 520), (one, 540), (two, 3), (two, 9)]
    tell_apart(every[1:])
    assert [each.name for each in every[1:]] == ["buffer", "rollout"]


def test_messages_of_two_starts_never_cause_each_other() -> None:
    """Four lines that each run has: as one they were a circle, and the trace a traceback."""
    second = {"run_id": "s", "started_s": 40.0}
    every = [
        recording("rollout", speaking(110, 2.0, sends=1)),
        recording("session-0", speaking(20, 2.1, message_id=1)),
        recording("rollout", speaking(100, 50.0, message_id=901), **second),
        recording("session-0", speaking(30, 49.0, sends=901), **second),
    ]
    told = [(each.recording.actor, each.line.number) for each in moments(every, "g1.0")]
    assert told == [("rollout", 110), ("session-0", 20), ("session-0", 30), ("rollout", 100)]


def test_an_actor_that_was_restarted_goes_on_behind_its_earlier_life() -> None:
    """On a host whose clock is behind, it seemed to begin before it died."""
    later = recording("engine-0", speaking(0, 1.0), incarnation=1, host="two")
    every = [later, recording("engine-0", speaking(7, 3.0))]
    told = [each.recording.name for each in moments(every, "g1.0")]
    assert told == ["engine-0", "engine-0 (life 2)"]
