"""The buffer's part of the archive: every trajectory once, with the last word on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.archive.kit import author, row, trained
from unit.buffer.kit import Play, settings

from milepost.actors.archive import hand as hands
from milepost.actors.archive.audit import audit
from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.index import discard
from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.reader import Archive, Query
from milepost.actors.archive.writer import ArchiveWriter
from milepost.actors.buffer.archivist import ArchivedBuffer
from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.groups import complete_group
from milepost.actors.buffer.marks import Fates
from milepost.configs.run import ArchiveConfig
from milepost.messages.buffer import (
    GroupAbandoned,
    GroupOpened,
    GroupsRefused,
    StepTrained,
    TrajectoryFinished,
)
from milepost.messages.supervisor import EventReported
from milepost.messages.trajectory import Trajectory

Word = tuple[str, str, str]


class Archived(Play):
    """A buffer with an archive, played message by message."""

    def __init__(
        self,
        folder: Path,
        stored: tuple[Any, ...] = (),
        config: ArchiveConfig = ArchiveConfig(),  # noqa: B008 - frozen
        resumed_from: int | None = None,
        **fields: Any,
    ) -> None:
        self.folder, self.stored_before = folder, stored
        self.resumed_from = resumed_from
        self.hand = ArchiveHand(author(folder), config, keeps_index=True)
        super().__init__(settings(**fields))

    def __post_init__(self) -> None:
        buffer = Buffer.of(self.given, Fates(), self.stored_before)
        self.core: Any = ArchivedBuffer(buffer, self.hand, self.resumed_from)
        self._asked = 0
        self.carry_out(self.core.start(0.0))

    def group(self, name: str, rewards: tuple[float, ...] = (0.0, 1.0)) -> list[Trajectory]:
        """Open a group and deliver all of it."""
        rows = [row(f"{name}.{at}", reward=reward) for at, reward in enumerate(rewards)]
        self.hear(GroupOpened(group_id=name, prompt_id="p", size=len(rewards)))
        for each in rows:
            self.deliver(each)
        return rows

    def words(self) -> list[Word]:
        """(trajectory, verdict, reason) of all that is archived, in order of arrival; audited."""
        self.hand.close(60.0)
        report = audit(self.folder)
        assert report.faults == []
        with Archive.open(self.folder) as archive:
            found = archive.select(Query(), limit=100)
        return [(each.trajectory_id, each.verdict.value, each.reason) for each in found]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more orders."""
    monkeypatch.setattr(hands, "LINGER_S", 0.0)


@pytest.mark.parametrize("journal", [{"journal": False}, {"journal": True}], ids=str)
def test_stored_waiting_and_filtered_are_told_apart(
    tmp_path: Path, journal: dict[str, Any]
) -> None:
    """With a journal or without: the verdict is the one that the rollout actor is told."""
    play = Archived(tmp_path, **journal, filters=(_flat,))
    play.group("a")
    play.group("b", (1.0, 1.0))
    play.hear(GroupOpened(group_id="c", prompt_id="p", size=2))
    play.deliver(row("c.0"))
    assert play.words() == [
        ("a.0", "stored", ""),
        ("a.1", "stored", ""),
        ("b.0", "dropped", "filtered_flat"),
        ("b.1", "dropped", "filtered_flat"),
        ("c.0", "waiting", ""),
    ]
    with Archive.open(tmp_path) as archive:
        assert archive.read("a.1").trajectory.group_rewards == (0.0, 1.0)


def _flat(candidate: Any) -> str:
    return "flat" if len(set(candidate.rewards)) == 1 else ""


def test_conversations_go_into_the_archive_and_no_further(tmp_path: Path) -> None:
    """The trainer needs no messages; batches and journal stay as small as they were."""
    play = Archived(tmp_path)
    rows = play.group("a")
    assert all(each.conversation is not None for each in rows)
    held = play.core.core.batches.queue["a"].trajectories
    assert all(each.conversation is None for each in held)
    play.words()
    with Archive.open(tmp_path) as archive:
        conversation = archive.read("a.0").conversation
    assert conversation is not None
    assert conversation.messages[0]["role"] == "user"


def test_a_group_that_is_given_up_is_dropped_with_the_reason(tmp_path: Path) -> None:
    """Also what comes later for it."""
    play = Archived(tmp_path)
    play.hear(GroupOpened(group_id="a", prompt_id="p", size=2))
    play.deliver(row("a.0"))
    play.hear(GroupAbandoned(group_id="a", reason="a sibling failed"))
    play.deliver(row("a.1"))
    assert play.words() == [
        ("a.0", "dropped", "abandoned: a sibling failed"),
        ("a.1", "dropped", "late_duplicate"),
    ]


def test_what_the_door_refuses_is_dropped_with_the_door_s_words(tmp_path: Path) -> None:
    """Whoever looks at the trajectory sees which contract failed."""
    play = Archived(tmp_path, groups_per_step=1)
    play.group("a")
    number = play.request(0)
    assert play.batch(number).group_ids == ("a",)
    refusal = GroupsRefused(step=0, group_ids=("a",), reasons=("C4 same version: stale",))
    play.hear(refusal, "trainer-0")
    reason = "refused_at_door: C4 same version: stale"
    assert play.words() == [("a.0", "dropped", reason), ("a.1", "dropped", reason)]


def test_a_trajectory_delivered_twice_is_archived_once(tmp_path: Path) -> None:
    """Also when its group is trained meanwhile: the real verdict stands."""
    play = Archived(tmp_path, groups_per_step=1)
    first, _ = play.group("a")
    play.deliver(first)
    play.request(0)
    play.hear(StepTrained(step=0, version=1, group_ids=("a",)), "trainer-0")
    play.deliver(first)
    assert play.words() == [("a.0", "stored", ""), ("a.1", "stored", "")]


def test_another_attempt_of_the_same_name_is_another_trajectory(tmp_path: Path) -> None:
    """A retry has other tokens; the reader gets the last unless it asks for one."""
    play = Archived(tmp_path)
    play.hear(GroupOpened(group_id="a", prompt_id="p", size=2))
    play.deliver(row("a.0", attempt=0, reward=0.25))
    play.hear(GroupAbandoned(group_id="a", reason="again"))
    play.deliver(row("a.0", attempt=1, reward=0.75))
    assert len(play.words()) == 2
    with Archive.open(tmp_path) as archive:
        assert archive.read("a.0").entry.reward == 0.75
        assert archive.read("a.0", attempt=0).entry.reward == 0.25


def test_a_buffer_that_comes_back_says_what_is_lost_and_archives_what_it_had_not(
    tmp_path: Path,
) -> None:
    """It was killed after its journal had a group and before its archive did.

    What was being assembled died with it; when that is delivered once more, it waits again.
    """
    first = Archived(tmp_path)
    first.group("a")
    first.hear(GroupOpened(group_id="c", prompt_id="p", size=2))
    first.deliver(row("c.0"))
    first.hand.close(60.0)
    members = [row(f"b.{at}", reward=float(at)) for at in range(2)]
    journalled = complete_group("b", [(each,) for each in members])
    a_again = complete_group("a", [(row(f"a.{at}", reward=float(at)),) for at in range(2)])
    second = Archived(tmp_path, (a_again, journalled))
    second.hear(GroupOpened(group_id="d", prompt_id="p", size=2))
    assert second.words() == [
        ("a.0", "stored", ""),
        ("a.1", "stored", ""),
        ("c.0", "dropped", "died with the buffer"),
        ("b.0", "stored", ""),
        ("b.1", "stored", ""),
    ]
    third = Archived(tmp_path, (a_again, journalled))
    third.hear(GroupOpened(group_id="c", prompt_id="p", size=2))
    third.deliver(row("c.0"), row("c.1", reward=0.0))
    assert {word[0]: word[1] for word in third.words()} == {
        "a.0": "stored",
        "a.1": "stored",
        "b.0": "stored",
        "b.1": "stored",
        "c.0": "stored",
        "c.1": "stored",
    }


def _train(folder: Path, *groups: tuple[list[Trajectory], int]) -> None:
    trainer = ArchiveWriter(author(folder, "trainer-0"))
    for rows, step in groups:
        rewards = tuple(each.reward for each in rows)
        trainer.write([trained(each, step, rewards=rewards) for each in rows])
    trainer.close()


def test_a_resume_makes_the_steps_after_its_checkpoint_void(tmp_path: Path) -> None:
    """Step 4 is kept. Of step 5 the journal has one group still, the other is sampled anew."""
    first = Archived(tmp_path)
    old = {name: first.group(name) for name in ("early", "again", "gone")}
    _train(tmp_path, (old["early"], 4), (old["again"], 5), (old["gone"], 5))
    first.hand.close(60.0)

    again = complete_group("again", [(each,) for each in old["again"]])
    second = Archived(tmp_path, (again,), resumed_from=5, groups_per_step=1)
    rows = [row(f"gone.{at}", attempt=1000, reward=float(at)) for at in range(2)]
    second.hear(GroupOpened(group_id="gone", prompt_id="p", size=2))
    second.deliver(*rows)
    assert second.words() == [
        ("early.0", "stored", ""),
        ("early.1", "stored", ""),
        ("again.0", "stored", "untrained_at_resume"),
        ("again.1", "stored", "untrained_at_resume"),
        ("gone.0", "dropped", "lost_at_resume"),
        ("gone.1", "dropped", "lost_at_resume"),
        ("gone.0", "stored", ""),
        ("gone.1", "stored", ""),
    ]
    with Archive.open(tmp_path) as archive:
        assert [step.step for step in archive.steps()] == [4]
        assert (archive.groups(5), archive.count(Query(step=5))) == ([], 0)

    # Now this life trains step 5, and its buffer is started anew, which makes nothing void.
    third = Archived(tmp_path, (again,), groups_per_step=1)
    number = third.request(0)
    assert third.batch(number).group_ids == ("again",)
    _train(tmp_path, (rows, 5), (old["again"], 6))
    third.hear(StepTrained(step=0, version=1, group_ids=("again",)), "trainer-0")
    words = third.words()
    discard(tmp_path)
    assert third.words() == words, "it follows from the records"
    assert [word[1:] for word in words[2:4]] == [("stored", "")] * 2
    with Archive.open(tmp_path) as archive:
        steps = [(each.step, each.num_groups, each.num_trajectories) for each in archive.steps()]
        assert steps == [(4, 1, 2), (5, 1, 2), (6, 1, 2)]
        assert archive.groups(5) == ["gone"]
        found = archive.select(Query(step=5), limit=9)
        assert {(each.trajectory_id, each.attempt) for each in found} == {
            ("gone.0", 1000),
            ("gone.1", 1000),
        }
        assert archive.count(Query(is_lost=True)) == 2


def test_a_run_that_begins_again_keeps_no_step(tmp_path: Path) -> None:
    """There was no checkpoint yet: all that was trained is lost."""
    first = Archived(tmp_path)
    rows = first.group("a")
    _train(tmp_path, (rows, 0))
    first.hand.close(60.0)
    second = Archived(tmp_path, resumed_from=0)
    assert [word[1:] for word in second.words()] == [("dropped", "lost_at_resume")] * 2


def test_records_that_are_missed_are_reported_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event for a person at the first, then each time they are more than twice as many."""
    monkeypatch.setattr(ArchiveHand, "put", _refuse)
    play = Archived(tmp_path)
    for number in range(6):  # starting was one order already
        play.deliver(row(f"g{number}.0"))
    events = [each for each in play.said if isinstance(each, EventReported)]
    assert [each.text.partition(" ")[0] for each in events] == ["2", "5"]
    assert {each.kind for each in events} == {"not_archived"}
    play.hand.close(60.0)


def _refuse(hand: ArchiveHand, order: object) -> None:
    del order
    hand.state.missed += 1
    hand.state.reason = "no room"


def test_several_rows_of_one_trajectory_are_one_entry(tmp_path: Path) -> None:
    """A session that branched: one arrival, both rows in it."""
    play = Archived(tmp_path)
    whole: dict[str, Any] = {"num_rows": 2, "trajectory_loss_tokens": 9}
    rows = [row("a.0", turns=1 + at, row=at, **whole) for at in range(2)]
    play.hear(GroupOpened(group_id="a", prompt_id="p", size=2))
    play.hear(TrajectoryFinished(trajectory=rows[0], others=(rows[1],)), "session-0")
    play.deliver(row("a.1", reward=0.0))
    assert play.words() == [("a.0", "stored", ""), ("a.1", "stored", "")]
    with Archive.open(tmp_path) as archive:
        stored = archive.read("a.0")
    assert [each.row for each in stored.rows] == [0, 1]
    assert stored.entry.num_turns == 3
    assert stored.entry.verdict is Verdict.STORED


def test_a_journal_larger_than_what_may_wait_is_archived_all_the_same(tmp_path: Path) -> None:
    """The groups are in memory anyway: only what the archive adds to that is bounded."""
    bound = 1 << 20
    rows = [row("g.0", said="so " * bound), row("g.1", reward=0.0)]
    group = complete_group("g", [(each,) for each in rows])
    play = Archived(tmp_path, (group,), ArchiveConfig(waiting_bytes_max=bound))
    assert [word[:2] for word in play.words()] == [("g.0", "stored"), ("g.1", "stored")]
    assert play.hand.state.missed == 0
