"""A batch that the door refused a part of, filled up again, on its way into the journal."""

from __future__ import annotations

from unit.buffer.kit import Play, group, settings

from milepost.actors.buffer.cuts import Cut
from milepost.actors.buffer.marks import Fates, Gone, Handed
from milepost.actors.buffer.work import WriteMarks
from milepost.messages.buffer import Batch, GroupsRefused
from milepost.messages.trainer import VersionPublished


def test_a_batch_that_is_filled_up_twice_in_a_row_is_written_twice_and_goes_out_after_both() -> (
    None
):
    """What it was filled up with becomes too old while the journal still writes that down. The same
    work ordered twice at a time would end the buffer; the word of the first is not of the second.
    """
    play = Play(settings(journal=True, late="drop", staleness_max=1, groups_max=6))
    play.hear(VersionPublished(version=0))
    for name, version in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        play.put(name, version)
    assert play.batch(play.request(0)).group_ids == ("a", "b")
    play.writes = False
    play.hear(GroupsRefused(step=0, group_ids=("a",), reasons=("C1",)), "trainer-0")
    play.hear(VersionPublished(version=2))
    number = play.request(0)
    writes = [work for work in play.works if isinstance(work, WriteMarks)]
    handed = [each for each in writes if any(isinstance(mark, Handed) for mark in each.marks)]
    assert [mark.groups for each in handed for mark in each.marks if isinstance(mark, Handed)] == [
        ("b", "c"),
        ("b", "d"),
    ]
    while handed[0] in play.works:
        play.finish(play.works[0])
    assert number not in play.replies, "BU-3: told before it was written"
    play.writes = True
    play.write()
    answer = play.batch(number)
    assert isinstance(answer, Batch)
    assert answer.group_ids == ("b", "d")


def test_a_batch_that_a_life_before_reopened_takes_no_group_that_is_too_old() -> None:
    """The door refused a part of it and the buffer died: what is left, and what fills it up, have
    aged as groups of the queue do."""
    fates = Fates()
    fates.apply(Handed(step=0, version=0, groups=("a", "b"), tokens=2))
    fates.apply(Gone(group="a", reason="C1", consumed=True))
    given = settings(journal=True, late="drop", staleness_max=0, groups_max=6)
    play = Play(given, fates, (group("b", 0),))
    play.hear(VersionPublished(version=1))
    number = play.request(0)
    for name, version in (("c", 0), ("d", 1), ("e", 1)):
        play.put(name, version)
    assert play.batch(number).group_ids == ("d", "e")


def test_the_key_of_a_write_is_the_same_until_the_next_one_begins() -> None:
    """Who asks for it to compare it must not make the work that goes on one of the past."""
    cut = Cut(step=3, version=3, groups={}, world_size=1, ranks=((),), metrics={})
    first = cut.begin_write()
    assert (cut.write_key, cut.write_key) == (first, first)
    assert cut.begin_write() == cut.write_key != first
