"""The simulated network tells of deaths as the shell of an actor does."""

from __future__ import annotations

from sim.choosers import Seeded
from sim.network import Network
from sim.standins import Scripted

from milepost.actors.effects import Answered, Ask, Effect, Event, Received, Reply, Wake, Woken
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
        assert event.request is not None
        return [Reply(event.request, self.word)]


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
