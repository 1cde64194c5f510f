"""What was staged for a version and cannot be let go: said by name, and no failure of anything."""

from __future__ import annotations

import pytest
from unit.engine.test_epochs import Asker, activate, bucket, moved, prepare

from milepost.actors.engine.interface import DropEpoch, Switched, SwitchWeights
from milepost.messages.engine import AbortEpoch, EpochConfirmed
from milepost.messages.supervisor import EventReported


def reported(asker: Asker) -> list[str]:
    """Texts of the events so far, which are taken away."""
    said, asker.said = asker.said, []
    texts = []
    for tell in said:
        assert tell.to == "supervisor"
        assert isinstance(tell.message, EventReported)
        assert (tell.message.source, tell.message.kind) == ("engine-0", "staging_kept")
        texts.append(tell.message.text)
    return texts


def test_a_version_that_serves_is_confirmed_whatever_is_left_of_its_staging() -> None:
    """Refused, it would be taken back on every engine while this one serves it."""
    asker = moved()
    assert asker.ask(activate()) is None
    switch = asker.works.pop()
    assert isinstance(switch, SwitchWeights)
    asker._take(asker.epochs.done(switch.key, Switched(0.25, 3, "OSError: busy"), ""))
    confirmed = list(asker.answers.values())[-1]
    assert confirmed == EpochConfirmed(version=1, digest="d", pause_s=0.25, num_in_flight=3)
    assert asker.epochs.version == 1
    (text,) = reported(asker)
    assert text == (
        "engine-0 serves version 1, and could not let go of what was staged: OSError: busy"
    )
    for message in (prepare(2), bucket(0, "a", "b", version=2), bucket(1, "c", version=2)):
        assert asker.told(message) == "", "the next one begins as ever"
    assert asker.told(activate(2)) == ""
    assert asker.epochs.version == 2
    assert reported(asker) == []


@pytest.mark.parametrize("error", ["", "RuntimeError: no"])
def test_a_version_that_is_given_up_and_stays_is_told_of(error: str) -> None:
    """Nobody waits for the end of that work: its failure would be heard by nobody."""
    asker = moved()
    assert asker.told(AbortEpoch(version=1, reason="r")) == ""
    assert [type(work) for work in asker.works] == [DropEpoch]
    asker.work(error)
    texts = reported(asker)
    assert len(texts) == bool(error)
    assert all(error in text and "serves no version" in text for text in texts)
    assert asker.told(prepare(2)) == ""
