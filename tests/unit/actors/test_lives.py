"""Which life of each peer a core has heard of."""

from __future__ import annotations

from milepost.actors.lives import Lives
from milepost.messages.engine import EpochAnswer
from milepost.messages.supervisor import PeerRestarted

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
    assert lives.news("peer", 1, WORD) is None, "nothing is known of an earlier one"
    first = news(1)
    assert lives.news("supervisor", 0, first) is first, "what it was asked may have died with it"
    second = news(2)
    assert lives.news("supervisor", 0, second) is second
    assert lives.news("peer", 1, WORD) is None
    assert lives.news("peer", 2, WORD) is None
