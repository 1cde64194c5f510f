"""Questions that a core leaves, and those that it answers."""

from __future__ import annotations

from milepost.actors.questions import Questions
from milepost.messages.bus import Bus, BusLimits, Incoming
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.engine import EpochAnswer

TOLD = EpochAnswer(version=1, ok=True)


def test_a_question_whose_asker_has_given_up_is_let_go() -> None:
    """It would otherwise be kept until the process ends: one a minute where batches take long."""
    waiting = {1, 2}
    questions = Questions(lambda asked: asked.message_id in waiting)
    first, second, third = [
        questions.add(Incoming("trainer-0", 0, number, 0, TOLD, wants_reply=True))
        for number in (1, 2, 3)
    ]
    questions.forget()
    assert len(questions) == 2
    assert questions.take(third) is None
    waiting.clear()
    assert questions.take(first) is not None, "who asks is not known to have given up meanwhile"
    assert questions.take(first) is None, "answered"
    questions.forget()
    assert questions.take(second) is None


async def test_who_has_its_answer_waits_for_none() -> None:
    network = MemoryNetwork(("asker", "peer"))
    asker, peer = [
        await Bus.over(
            network.transport(name),
            name=name,
            incarnation=0,
            run_id="run",
            limits=BusLimits(probe_s=60),
        )
        for name in ("asker", "peer")
    ]
    asking = asker.ask("peer", TOLD, deadline_s=60)
    asked = await peer.receive()
    assert peer.is_waited_for(asked)
    peer.reply(asked, TOLD)
    assert not peer.is_waited_for(asked)
    assert not asker.is_waited_for(await asking), "an answer is no question"
    for bus in (asker, peer):
        await bus.close(deadline_s=0.05)
