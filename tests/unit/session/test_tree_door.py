"""Tree sessions behind a door, which gives one list with each request of its client."""

from __future__ import annotations

from typing import Any

from unit.session.kit import LOOKUP, QUESTION, play

from milepost.actors.session.doors import DOOR, DoorTurn
from milepost.actors.session.history import Replayed
from milepost.configs.actors import TreeConfig


def test_a_turn_in_flight_keeps_the_history_it_was_asked_with() -> None:
    """The list of a door grows with the client's next request, also while a retry is in flight.

    A reply stored after messages that it has never seen would be trained as the answer to them.
    """
    game = play(tree=TreeConfig())
    game.open()
    one = game.turn([QUESTION], "one")
    said = Replayed([QUESTION])
    game.ask(DoorTurn(trajectory_id="g.0", messages=said, tools=[LOOKUP]), DOOR)
    said += [one, {"role": "user", "content": "go on"}]
    game.sample("two")
    record: Any = game.core._sessions["g.0"].record
    first, second = record.branches()
    assert first.messages == [QUESTION, one]
    assert second.messages == [QUESTION, {"role": "assistant", "content": "two"}]
    assert first.retried, "the second is another reply to the same question"
