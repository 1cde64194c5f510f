"""The stream of answers on one link."""

from __future__ import annotations

from milepost.messages.bus.answer_stream import AnswerStream
from milepost.messages.bus.delivery import Delivery, Kind


def standing(base: int, last: int) -> Delivery:
    return Delivery(Kind.ACK, 0, base, last, 0, 0)


def test_answers_are_taken_in_order_and_repeats_are_counted() -> None:
    stream = AnswerStream()
    assert [stream.take(1, number) for number in (1, 2, 2, 1, 4, 3)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip
    assert (stream.received, stream.num_duplicates) == (3, 2)


def test_a_hole_is_asked_for_once() -> None:
    """Ten answers behind it must not make ten requests."""
    stream = AnswerStream()
    assert not stream.is_complete(standing(base=1, last=2))
    assert [stream.is_new_gap(), stream.is_new_gap()] == [True, False]
    before = stream.has_gap
    assert stream.take(1, 1)
    assert (before, stream.has_gap) == (True, False)
    assert not stream.is_complete(standing(base=1, last=2))
    assert stream.is_new_gap()


def test_answers_that_were_given_up_are_not_waited_for() -> None:
    stream = AnswerStream()
    assert stream.take(base=5, sequence=5)
    assert stream.is_complete(standing(base=6, last=5))
    assert stream.is_complete(standing(base=9, last=8))
    assert stream.received == 8


def test_a_new_process_starts_a_new_stream() -> None:
    stream = AnswerStream()
    assert stream.take(1, 1)
    stream.restart()
    assert stream.take(1, 1)
    assert stream.num_duplicates == 0
