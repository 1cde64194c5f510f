"""Responses that are gone on from by their id: what they stand for, and for how long."""

from __future__ import annotations

import pytest

from milepost.actors.session.http.continued import RESPONSES_MAX, Continued, Kept
from milepost.actors.session.refusal import TurnRefused
from milepost.messages.shared import ChatMessage


def said(content: str, role: str = "user") -> ChatMessage:
    return {"role": role, "content": content}


def asked(content: str, previous: str = "", instructions: str = "") -> Continued:
    return Continued(previous, instructions, (said(content),))


def test_a_response_stands_for_everything_that_led_to_it() -> None:
    """The very messages of the session, so that nothing is compared, or told twice."""
    kept = Kept()
    first, reply = asked("a"), said("b", "assistant")
    kept.remember("1", first, reply)
    kept.remember("2", asked("c", "1"), said("d", "assistant"))
    kept.remember("fork", asked("e", "1"), said("f", "assistant"))

    def texts(response_id: str) -> list[str]:
        told = kept.history(asked("next", response_id), may_branch=False)
        return [message["content"] for message in told]

    assert texts("2") == ["a", "b", "c", "d"]
    assert texts("fork") == ["a", "b", "e", "f"]
    assert texts("") == []
    assert kept.history(asked("next", "1"), may_branch=False)[1] is reply


def test_other_instructions_are_another_conversation() -> None:
    """They stand first in the row: a linear session has one beginning, a tree may have several."""
    kept = Kept()
    kept.remember("1", asked("a", instructions="Be brief."), said("b", "assistant"))
    again = asked("c", "1", "Be brief.")
    assert len(kept.history(again, may_branch=False)) == 2
    with pytest.raises(TurnRefused, match=r"not carried over .* began with 'Be brief.': send"):
        kept.history(asked("c", "1"), may_branch=False)
    assert len(kept.history(asked("c", "1"), may_branch=True)) == 2


def test_the_newest_responses_are_kept_and_what_led_to_them_with_them() -> None:
    """A turn may be tried again without end; a session must not grow without end."""
    kept = Kept()
    kept.remember("first", asked("a"), said("b", "assistant"))
    for number in range(RESPONSES_MAX):
        kept.remember(f"{number}", asked("c", "first"), said("d", "assistant"))
    with pytest.raises(TurnRefused, match="previous_response_id = 'first'"):
        kept.history(asked("e", "first"), may_branch=False)
    assert len(kept.history(asked("e", "0"), may_branch=False)) == 4
