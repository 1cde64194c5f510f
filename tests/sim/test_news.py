"""The simulated network tells of deaths as the shell of an actor does."""

from __future__ import annotations

import pytest
from sim.choosers import Seeded
from sim.network import Network
from sim.overseer import Supervisor
from sim.standins import Scripted

from milepost.actors.effects import Answered, Ask, Effect, Event, Received, Reply, Tell, Wake, Woken
from milepost.messages.engine import EpochAnswer
from milepost.messages.supervisor import PeerRestarted

QUESTION = EpochAnswer(version=0, ok=True)
LATER_S = 5.0


class Asker(Scripted):
    """Asks at once and once more later; keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def start(self, now_s: float) -> list[Effect]:
        return [Ask("peer", QUESTION, "first"), Wake("later", now_s + LATER_S)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        if isinstance(event, Woken):
            return [Ask("peer", QUESTION, "second")]
        self.told.append(event)
        return []


class Peer(Scripted):
    """Answers with its life."""

    def __init__(self, incarnation: int) -> None:
        self.word = EpochAnswer(version=incarnation, ok=True)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        assert isinstance(event, Received)
        return [Reply(event.request, self.word)] if event.request is not None else []


def test_an_answer_brings_the_news_of_a_death_as_a_message_does() -> None:
    """A network that is kinder than the bus finds no core that takes the one for the other."""
    network, asker = Network(Seeded(0)), Asker()
    network.add("asker", lambda _: asker)
    network.add("peer", Peer)
    for name in network.actors:
        network.start(name)
    while not asker.told:
        assert network.step()
    network.kill("peer", keep_sent=lambda _: 0)
    network.start("peer")
    while network.step():
        pass
    assert asker.told == [
        Answered("first", "peer", EpochAnswer(version=0, ok=True)),
        Received("supervisor", PeerRestarted(actor="peer", incarnation=1)),
        Answered("second", "peer", EpochAnswer(version=1, ok=True)),
    ]


class Giver(Scripted):
    """Gives a peer something at once, if it is to, and asks it later."""

    def __init__(self, *, gives: bool) -> None:
        self.told: list[Event] = []
        self._gives = gives

    def start(self, now_s: float) -> list[Effect]:
        given: list[Effect] = [Tell("peer", QUESTION)] if self._gives else []
        return [*given, Wake("later", now_s + LATER_S)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        if isinstance(event, Woken):
            return [Ask("peer", QUESTION, "first")]
        self.told.append(event)
        return []


@pytest.mark.parametrize("gives", [True, False])
def test_a_first_word_of_a_later_life_is_not_followed_by_the_death_before_it(
    *, gives: bool
) -> None:
    """The news comes over another link: told second, it would be taken for the death of who has
    answered. What the dead had taken is lost, and that is told first; had it nothing, never."""
    network, giver = Network(Seeded(0)), Giver(gives=gives)
    network.add("supervisor", lambda _: Supervisor(), is_stubborn=True)
    network.add("giver", lambda _: giver)
    network.add("peer", Peer)
    for name in network.actors:
        network.start(name)
    while network.now_s < LATER_S / 2:
        assert network.step()
    network.kill("peer", keep_sent=lambda _: 0)
    network.start("peer")
    while not giver.told:
        assert network.step()
    news = PeerRestarted(actor="peer", incarnation=1)
    network.tell("supervisor", "giver", news)
    while network.step():
        pass
    answer = Answered("first", "peer", EpochAnswer(version=1, ok=True))
    assert giver.told == ([Received("supervisor", news), answer] if gives else [answer])
