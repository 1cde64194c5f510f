"""The agent's core: every episode taken ends with exactly one word to whoever ordered it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.agent.kit import order

from milepost.actors.agent.core import (
    AgentCore,
    AwaitRoom,
    CollectAlive,
    RunCode,
    SayGoodbye,
    StopCode,
    TakePart,
)
from milepost.actors.effects import (
    Effect,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.messages.agent import CancelEpisode, ChatPart, RunEnds, RunEpisode
from milepost.messages.rollout import AgentLeft, AgentReady, EpisodeEnded, EpisodesAlive
from milepost.messages.shared import Status
from milepost.messages.supervisor import Drain, Drained, PeerRestarted


@dataclass
class Host:
    """A core with code that runs until it is told to end."""

    core: AgentCore
    now_s: float = 0.0
    running: dict[str, RunEpisode] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    told: list[Tell] = field(default_factory=list)
    wakes: dict[str, float] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    collected: int = 0

    def feed(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self.told.append(effect)
                case Wake():
                    self.wakes[effect.key] = effect.at_s
                case Reply():
                    self.replies.append(effect)
                case RunCode():
                    assert effect.key not in self.running
                    self.running[effect.key] = effect.order
                case StopCode():
                    assert effect.run_key not in self.stopped, "code is stopped once"
                    self.stopped[effect.run_key] = effect.reason
                    self.handle(WorkDone(effect.key, None))
                case CollectAlive():
                    self.collected += 1
                case _:
                    raise AssertionError(effect)

    def handle(self, event: Any) -> None:
        self.feed(self.core.handle(event, self.now_s))
        self.core.validate()

    def tell(self, message: Any, source: str = "rollout", request: Request | None = None) -> None:
        self.handle(Received(source, message, request))

    def end(self, key: str, status: Status = Status.COMPLETED) -> None:
        """The code of this run ends."""
        ended = self.running.pop(key)
        if key in self.stopped:
            status = Status.ABORTED
        reward = 1.0 if status is Status.COMPLETED else None
        self.handle(
            WorkDone(
                key,
                EpisodeEnded(
                    trajectory_id=ended.trajectory_id, attempt=ended.attempt, status=status,
                    reward=reward, cause=self.stopped.get(key, ""), num_turns=2,
                ),
            )
        )  # fmt: skip

    def endings(self) -> list[tuple[str, int, str]]:
        """What was told about episodes."""
        return [
            (tell.message.trajectory_id, tell.message.attempt, tell.message.status.value)
            for tell in self.told
            if isinstance(tell.message, EpisodeEnded)
        ]


def host(episodes_max: int = 2) -> Host:
    """A host that has said that it is ready."""
    made = Host(AgentCore("agent-0", episodes_max=episodes_max, alive_every_s=5.0))
    made.feed(made.core.start(0.0))
    return made


def test_a_host_offers_its_room_and_again_when_the_rollout_actor_comes_back() -> None:
    """The new one knows of no agents; and waits for none of the old one's episodes."""
    made = host()
    ready = AgentReady(agent="agent-0", episodes_max=2)
    assert made.told[0].message == ready
    made.tell(order("g.0"))
    made.tell(order("e.0", report_to="evaluator"))
    made.tell(PeerRestarted(actor="rollout", incarnation=2), "supervisor")
    assert made.told[-1].message == ready
    assert made.stopped == {"run/g.0/0": "rollout restarted"}


def test_an_episode_runs_and_its_ending_goes_to_who_ordered_it() -> None:
    """A second order for the same attempt changes nothing."""
    made = host()
    made.tell(order("e.0", report_to="evaluator"))
    made.tell(order("e.0", report_to="evaluator"))
    made.end("run/e.0/0")
    assert made.endings() == [("e.0", 0, "completed")]
    assert made.told[-1].to == "evaluator"
    assert made.told[-1].confirm
    made.handle(Taken(made.told[-1].key))
    assert made.core.statistics()["endings_under_way"] == 0


def test_more_episodes_than_there_is_room_for_wait_and_then_are_refused() -> None:
    """A queue without a bound would hide that the room was counted wrongly."""
    made = host(episodes_max=2)
    for number in range(5):
        made.tell(order(f"g.{number}"))
    assert sorted(made.running) == ["run/g.0/0", "run/g.1/0"]
    assert made.endings() == [("g.4", 0, "aborted")]
    ended: Any = made.told[-1].message
    assert ended.cause == "agent-0 runs 2 episodes and 2 wait"
    made.end("run/g.1/0")
    assert sorted(made.running) == ["run/g.0/0", "run/g.2/0"]


def test_cancelling_stops_code_or_takes_an_episode_from_the_queue() -> None:
    """Both are answered with aborted, once."""
    made = host(episodes_max=1)
    made.tell(order("g.0"))
    made.tell(order("g.1"))
    for name in ("g.1", "g.0", "g.0", "g.7"):
        made.tell(CancelEpisode(trajectory_id=name, reason="group dropped"))
    assert made.stopped == {"run/g.0/0": "group dropped"}
    made.end("run/g.0/0")
    assert made.endings() == [("g.1", 0, "aborted"), ("g.0", 0, "aborted")]


def test_a_newer_attempt_stops_the_older_one() -> None:
    """Two of them would chat in one session."""
    made = host()
    made.tell(order("g.0", attempt=0))
    made.tell(order("g.0", attempt=1))
    assert made.stopped == {"run/g.0/0": "attempt 1 took its place"}
    made.end("run/g.0/0")
    made.end("run/g.0/1")
    assert made.endings() == [("g.0", 0, "aborted"), ("g.0", 1, "completed")]


def test_an_ending_that_is_not_taken_is_told_again_and_then_given_up() -> None:
    """The lease covers the case that whoever ordered it is gone for good."""
    made = host()
    made.tell(order("g.0"))
    made.end("run/g.0/0")
    key = made.told[-1].key
    for tells in (1, 2, 3):
        assert len(made.endings()) == tells
        made.handle(Unanswered(key, "rollout", "dead"))
        if tells < 3:
            made.handle(Woken(key))
    assert made.core.statistics()["endings_under_way"] == 0


def test_a_failure_of_the_host_itself_fails_the_episode_by_name() -> None:
    """Not the user's fault, and still exactly one ending."""
    made = host()
    made.tell(order("g.0"))
    made.running.clear()
    made.handle(WorkDone("run/g.0/0", None, "MemoryError: "))
    ended: Any = made.told[-1].message
    assert (ended.status, ended.cause, ended.reward) == (Status.FAILED, "MemoryError: ", None)


def test_the_rollout_actor_hears_which_episodes_go_on() -> None:
    """Only those that had a reply: a hanging tool must not renew its lease."""
    made = host()
    assert made.wakes["alive"] == 5.0
    made.now_s = 5.0
    made.handle(Woken("alive"))
    assert (made.collected, made.wakes["alive"]) == (1, 10.0)
    before = len(made.told)
    made.handle(WorkDone("alive", ()))
    assert len(made.told) == before
    made.handle(WorkDone("alive", ("g.0",)))
    assert made.told[-1].message == EpisodesAlive(trajectory_ids=("g.0",))


def test_a_drain_lets_episodes_end_then_stops_them_then_says_so() -> None:
    """Room is offered no more, and an order on its way comes back as aborted."""
    made = host()
    made.tell(order("g.0"))
    request = Request("supervisor", 9)
    made.tell(Drain(deadline_s=10.0), "supervisor", request)
    assert made.told[-1].message == AgentReady(agent="agent-0", episodes_max=0)
    made.tell(order("g.1"))
    assert made.endings() == [("g.1", 0, "aborted")]
    assert made.wakes["drain"] == 8.0
    made.handle(Woken("drain"))
    assert made.stopped == {"run/g.0/0": "agent-0 drains"}
    made.end("run/g.0/0")
    for tell in list(made.told):
        if tell.confirm:
            assert not made.replies
            made.handle(Taken(tell.key))
    assert made.replies == [Reply(request, Drained(actor="agent-0"))]
    left = [each.message for each in made.told if isinstance(each.message, AgentLeft)]
    assert left == [AgentLeft(agent="agent-0", reason="it drained")]


def test_a_message_that_no_agent_can_get_is_an_error() -> None:
    """It would otherwise be lost without a word."""
    with pytest.raises(TypeError, match="agent-0 was told AgentReady by rollout"):
        host().tell(AgentReady(agent="agent-1", episodes_max=1))


def test_what_the_host_does_is_told_in_names() -> None:
    """The text of `why`."""
    made = host()
    assert made.core.working_on() == "waits for episodes"
    made.tell(order("g.0", attempt=2))
    assert "oldest is g.0/2" in made.core.working_on()


actions = st.tuples(
    st.sampled_from(["run", "run", "run", "cancel", "end", "end", "restart"]),
    st.integers(0, 3),
    st.integers(0, 2),
)


@given(st.lists(actions, max_size=40))
def test_every_episode_taken_ends_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    """Orders, cancellations, endings and restarts in any order."""
    made = host(episodes_max=2)
    ordered: set[tuple[str, int]] = set()
    for action, number, attempt in steps:
        name = f"g.{number}"
        if action == "run":
            if (name, attempt) in ordered:
                continue
            ordered.add((name, attempt))
            made.tell(order(name, attempt=attempt))
        elif action == "cancel":
            made.tell(CancelEpisode(trajectory_id=name, reason="x"))
        elif action == "restart":
            made.tell(PeerRestarted(actor="rollout", incarnation=1), "supervisor")
        elif made.running:
            made.end(sorted(made.running)[number % len(made.running)])
    while made.running:
        made.end(next(iter(made.running)))
    ended = Counter((name, attempt) for name, attempt, _ in made.endings())
    assert ended == Counter(ordered)


def test_room_that_comes_and_goes_is_announced_and_what_waits_for_none_is_given_back() -> None:
    """A host of guests: rollout must not send episodes to a door with nobody behind it."""
    core = AgentCore("guests", episodes_max=4, alive_every_s=None, has_fixed_room=False)
    assert core.start(0.0) == [AwaitRoom("room", 0)]
    given = Received("rollout", order("g.0"))
    [back] = core.handle(given, 0.0)
    assert isinstance(back, Tell)
    assert isinstance(back.message, EpisodeEnded)
    assert back.message.status is Status.ABORTED
    assert core.handle(WorkDone("room", 1), 1.0) == [AwaitRoom("room", 1)]
    [started] = core.handle(Received("rollout", order("g.1")), 1.0)
    assert isinstance(started, RunCode)
    assert core.handle(Received("rollout", order("g.2")), 1.0) == []
    [back, again] = core.handle(WorkDone("room", 0), 2.0)
    assert isinstance(back, Tell)
    assert back.message.trajectory_id == "g.2"  # type: ignore[attr-defined]
    assert again == AwaitRoom("room", 0)
    core.validate()


def test_parts_of_replies_go_to_the_hands_in_their_order() -> None:
    made = host()
    parts = [ChatPart(stream="1", number=number, content="x") for number in (1, 2)]
    works = []
    for part in parts:
        works += made.core.handle(Received("session-0", part), 0.0)
    taken = [work for work in works if isinstance(work, TakePart)]
    assert [work.part for work in taken] == parts
    assert made.core.handle(WorkDone(taken[0].key, None), 0.0) == []


def test_only_the_door_of_the_guests_says_goodbye() -> None:
    """Whoever is told the end of the run without guests was told by mistake."""
    door = AgentCore("guests", episodes_max=2, alive_every_s=None, has_fixed_room=False)
    news = RunEnds(status="done", reason="trained")
    [work] = door.handle(Received("supervisor", news), 0.0)
    assert isinstance(work, SayGoodbye)
    assert work.news == news
    with pytest.raises(TypeError, match="RunEnds"):
        host().tell(news, "supervisor")
