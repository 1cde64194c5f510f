"""Versions that are broadcast: who meets whom, under which name, and what late answers mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unit.publisher.kit import FleetPlay, Play

from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.engine import EpochAnswer, PrepareEpoch, ReceiveVersion
from milepost.messages.publisher import EngineReady, HoldRefused
from milepost.messages.shared import Message
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trainer import SendVersion, VersionFailed, VersionSent


class _Broadcasts(Play):
    """The trainer sends when it is asked, and says so when the test has it."""

    @property
    def settings(self) -> PublisherSettings:
        return replace(super().settings, transport="broadcast", life="run.0")

    def _good(self, engine: str, message: Message) -> Message:
        match message:
            case ReceiveVersion(version=version):
                return EpochAnswer(version=version, ok=True)
            case SendVersion(version=version):
                return VersionSent(version=version, ok=True)
            case _:
                return super()._good(engine, message)

    def meetings(self) -> dict[str, list[str]]:
        """Names of the meetings under way, and who was asked to come."""
        found: dict[str, list[str]] = {}
        for ask in self.asked.values():
            if isinstance(ask.message, ReceiveVersion):
                found.setdefault(ask.message.group, []).append(ask.to)
        return found

    def prepared(self) -> None:
        """Every engine takes PREPARE."""
        while engines := self.waiting(PrepareEpoch):
            self.answer(engines[0])


@dataclass
class BroadcastPlay(_Broadcasts):
    """Two engines of the rollout."""


@dataclass
class FleetBroadcastPlay(_Broadcasts, FleetPlay):
    """The same beside one engine of the evaluator's own."""


def test_all_engines_and_the_sender_meet_once() -> None:
    play = BroadcastPlay()
    play.announce(0)
    play.prepared()
    assert play.meetings() == {"run.0-1-v0": ["engine-0", "engine-1"]}
    play.answer_all()
    assert play.published() == [0]


def test_an_engine_that_comes_back_in_the_middle_gets_a_meeting_of_its_own() -> None:
    """The others have been in theirs; to wait for them once more is to wait for the deadline."""
    play = BroadcastPlay()
    play.announce(0)
    play.answer_all()
    play.announce(1)
    play.prepared()
    play.hear(PeerRestarted(actor="engine-1", incarnation=1), "supervisor")
    play.asked = {key: ask for key, ask in play.asked.items() if ask.to != "engine-1"}
    play.hear(EngineReady(engine="engine-1"), "engine-1")
    play.prepared()
    groups = play.meetings()
    assert [members for members in groups.values() if "engine-1" in members] == [["engine-1"]]
    play.answer_all()
    assert play.published() == [0, 1]
    assert play.serving == {"engine-0": 1, "engine-1": 1}


def test_a_meeting_that_failed_long_ago_fails_no_other_one() -> None:
    """Its sender waits for whoever died until the deadline, while the next try goes on."""
    play = BroadcastPlay()
    play.announce(0)
    play.answer_all()
    play.announce(1)
    play.prepared()
    (first,) = [key for key, ask in play.asked.items() if isinstance(ask.message, SendVersion)]
    play.wake("deadline/1")
    play.asked.clear()
    play.wake("begin")
    play.prepared()
    (second,) = play.meetings()
    play.feed_answer(first, VersionSent(version=1, ok=False, reason="engine-1 did not come"))
    assert list(play.meetings()) == [second]
    play.answer_all()
    assert play.published() == [0, 1]
    assert play.take(VersionFailed) == []


def test_no_two_meetings_of_a_run_have_one_name() -> None:
    """Members find each other under it: an old one's addresses lead to processes that left."""
    play = FleetBroadcastPlay()
    play.announce(0)
    play.prepared()
    names = list(play.meetings())
    play.answer_all()
    for _ in range(2):
        play.hold_fleet()
        while not play.replies:
            play.prepared()
            names += play.meetings()
            for engine in play.waiting(ReceiveVersion):
                play.answer(engine, EpochAnswer(version=0, ok=False, reason="no memory"))
            play.asked = {key: ask for key, ask in play.asked.items() if ask.to != "trainer-0"}
            if begin := next((key for key in play.wakes if key.endswith("begin")), ""):
                play.wake(begin)
        assert isinstance(play.replies.pop(), HoldRefused)
    assert len(names) == 1 + 2 * 3
    assert len(set(names)) == len(names), names
