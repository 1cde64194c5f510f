"""A bus that fails at one message for a reason nobody expects: it says so, and goes on.

Here the reason is a thread that is gone; it might be a full disk, or no memory.
"""

from __future__ import annotations

import logging

import pytest
from proc.bus.harness import World, ended, serve

from milepost.messages.bus import Unanswered, Undelivered
from milepost.messages.supervisor import Begin, EventReported, Stacks, StacksRequested

LONG_S = 60.0
"""Nobody waits so long: what fails is told at once, and not at its deadline."""


BIG = EventReported(source="a", kind="k", text="x" * (2 << 20))
"""After one of its type, the next is packed aside, and so are all of them read."""


async def test_a_message_that_cannot_be_packed_fails_by_name_and_holds_up_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Swallowed, it would stand at the head of its link until its deadline, and all behind it."""
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", BIG, deadline_s=LONG_S)
    assert (await b.receive()).message == BIG
    await told
    a._packing._going.shutdown()
    with caplog.at_level(logging.ERROR):
        broken = a.tell("b", BIG, deadline_s=LONG_S)
        asked = a.ask("b", BIG, deadline_s=LONG_S)
        behind = a.tell("b", Begin(), deadline_s=LONG_S)
        with pytest.raises(Undelivered, match="EventReported cannot be packed: RuntimeError"):
            await broken
        with pytest.raises(Unanswered, match="EventReported cannot be packed: RuntimeError"):
            await asked
        assert (await b.receive()).message == Begin()
        await behind
    assert "bus of a: packing the EventReported for b failed" in caplog.text
    assert (a.statistics().failed_inside, b.statistics().failed_inside) == (2, 0)


async def test_an_answer_that_cannot_be_packed_is_a_refusal(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asked hears why, and whoever asks next is answered."""
    a, b = await world.bus("a"), await world.bus("b")
    answers = [BIG, BIG, Stacks(text="s")]
    server = serve(b, lambda incoming: b.reply(incoming, answers.pop(0)))
    with caplog.at_level(logging.ERROR):
        assert (await a.ask("b", StacksRequested(), deadline_s=LONG_S)).message == BIG
        b._packing._going.shutdown()
        with pytest.raises(Unanswered, match="the answer cannot travel: RuntimeError"):
            await a.ask("b", StacksRequested(), deadline_s=LONG_S)
        answer = await a.ask("b", StacksRequested(), deadline_s=LONG_S)
    assert answer.message == Stacks(text="s")
    await ended(server)
    assert "bus of b: packing the EventReported for a failed" in caplog.text
    assert b.statistics().failed_inside == 1


async def test_an_answer_that_breaks_while_it_is_read_is_told_to_who_asked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that reads large answers is gone: a question fails, and small ones go on."""
    a, b = await world.bus("a"), await world.bus("b")
    answers = [BIG, Stacks(text="s")]
    server = serve(b, lambda incoming: b.reply(incoming, answers.pop(0)))
    a._packing._coming.shutdown()
    with caplog.at_level(logging.ERROR):
        with pytest.raises(Unanswered, match="got an answer that broke here: RuntimeError"):
            await a.ask("b", StacksRequested(), deadline_s=LONG_S)
        answer = await a.ask("b", StacksRequested(), deadline_s=LONG_S)
    assert answer.message == Stacks(text="s")
    await ended(server)
    assert "bus of a: reading the EventReported of b failed" in caplog.text
    assert a.statistics().failed_inside == 1
