"""Which life of each peer a core has heard of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from milepost.actors.lives import InOrder, Lives
from milepost.messages.bus import Incoming
from milepost.messages.engine import EpochAnswer
from milepost.messages.shared import Message
from milepost.messages.supervisor import EventReported, PeerRestarted

WORD = EpochAnswer(version=1, ok=True)


def news(incarnation: int) -> PeerRestarted:
    return PeerRestarted(actor="peer", incarnation=incarnation)


def test_news_are_told_once_whoever_says_so_first() -> None:
    lives = Lives()
    assert lives.news("peer", 0, WORD) is None
    assert lives.news("peer", 1, WORD) == news(1)
    assert lives.news("supervisor", 0, news(1)) is None
    second = news(2)
    assert lives.news("supervisor", 0, second) is second
    assert lives.news("peer", 2, WORD) is None
    assert lives.news("peer", 4, WORD) == news(4), "it died twice in the meantime"
    assert lives.news("supervisor", 0, news(3)) is None


def test_last_words_of_a_dead_life_are_no_news() -> None:
    lives = Lives()
    assert lives.news("peer", 1, WORD) == news(1), "what it was asked may have died with life 0"
    assert lives.news("supervisor", 0, news(1)) is None, "told second, the living would be dead"
    second = news(2)
    assert lives.news("supervisor", 0, second) is second
    assert lives.news("peer", 1, WORD) is None
    assert lives.news("peer", 2, WORD) is None


def test_deaths_before_the_first_question_was_taken_are_no_news() -> None:
    """A publisher that was started again asks engines that were started again before it: what it
    asked lives, and news of their deaths would have it begin again, or wait."""
    lives = Lives()
    assert lives.news("peer", 2, WORD, first=True) is None
    assert lives.news("supervisor", 0, news(1)) is None
    assert lives.news("supervisor", 0, news(2)) is None, "it is of the life before the answer's"
    assert lives.news("peer", 3, WORD, first=True) == news(3), "life 2 had been asked"


def test_an_answer_is_no_sign_that_nothing_was_lost_before_it() -> None:
    """What life 0 took is gone with it, though it never said a word; so it is told, and first."""
    lives = Lives()
    assert lives.news("peer", 1, WORD) == news(1)
    assert lives.news("supervisor", 0, news(1)) is None, "told second, the living would be dead"


class Turns:
    """An event loop by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None], /) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        """What was asked for before this turn."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_nothing_overtakes_news_that_wait_for_questions_to_fail() -> None:
    """Answers are not taken by whoever takes messages: one may come in the turn between a message
    and the news that it brought."""
    turns, told = Turns(), list[Message]()

    def tell(incoming: Incoming) -> None:
        told.append(incoming.message)

    def fail(peer: str, incarnation: int) -> None:
        failed = EventReported(source=peer, kind="failed", text=str(incarnation))
        turns.call_soon(partial(told.append, failed))

    peers = InOrder(turns, fail, lambda _: False, tell)
    words = [EpochAnswer(version=number, ok=True) for number in range(4)]
    for incarnation, word in enumerate((words[0], words[1])):
        peers.take(Incoming("peer", incarnation, 0, 0, word), tell)
    peers.take(Incoming("peer", 1, 0, 0, words[2]), tell, answers=True)
    peers.take(Incoming("peer", 2, 0, 0, words[3]), tell, answers=True)
    assert told == words[:1]
    turns.turn()
    first, second = (EventReported(source="peer", kind="failed", text=text) for text in "12")
    assert told == [words[0], first, news(1), *words[1:3], second, news(2), words[3]]
    assert not turns.calls


def test_the_bus_says_whether_a_life_before_an_answer_has_taken_anything() -> None:
    turns, told, died = Turns(), list[Message](), set[str]()

    def tell(incoming: Incoming) -> None:
        told.append(incoming.message)

    peers = InOrder(turns, lambda _, __: None, died.__contains__, tell)
    died.add("lost")
    for peer in ("peer", "lost"):
        peers.take(Incoming(peer, 1, 0, 0, WORD), tell, answers=True)
    for peer in ("peer", "lost"):
        late = PeerRestarted(actor=peer, incarnation=1)
        peers.take(Incoming("supervisor", 0, 0, 0, late), tell)
    turns.turn()
    assert told == [WORD, PeerRestarted(actor="lost", incarnation=1), WORD]
