"""Reading an archive: lists, filters, one trajectory whole, and a hundred thousand of them."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from unit.archive.kit import Library, author, fill_index

from milepost.actors.archive.layout import FOLDER, Refused, Verdict, key_of
from milepost.actors.archive.reader import Archive, IndexDamaged, NoArchive, Query, Unknown
from milepost.actors.archive.schema import INDEX
from milepost.actors.archive.writer import ArchiveWriter
from milepost.messages.shared import Status

NUM_MANY = 20_000
EVERY = 1000
"""Instructions of SQLite between two calls of whoever counts them."""
SCAN, LOOK_UP = 25.0, 1.0
"""Instructions of one question for each trajectory of the run, at most: where all of them are
counted, and where an index knows which."""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """A small archive on disk."""
    return Library(tmp_path).write()


def test_what_was_written_is_read_back_whole(library: Library) -> None:
    """A row, its conversation and what the trainer computed of it come back byte for byte."""
    with Archive.open(library.folder) as archive:
        stored = archive.read("g1.1")
    original = library.rows[3]
    assert stored.trajectory.token_ids == original.token_ids
    assert stored.trajectory.certificate == original.certificate
    assert stored.trajectory.group_rewards == (0.0, 1.0)
    assert stored.training is not None
    assert stored.training.step == 1
    assert stored.training.logprobs is not None
    computed = array("f", bytes(stored.training.logprobs.data))
    sampled = [value for value in array("f", bytes(original.logprobs.data)) if value]
    assert computed.tolist() == pytest.approx([value - 0.01 for value in sampled])
    assert stored.conversation is not None
    assert stored.conversation.messages[0]["content"].startswith("Question of g1.1")
    assert stored.entry.verdict is Verdict.STORED


def test_lists_are_filtered_and_ordered(library: Library) -> None:
    """Each filter leaves what it says, alone and together with others."""
    with Archive.open(library.folder) as archive:
        assert archive.count(Query()) == 8
        assert archive.count(Query(verdict=Verdict.DROPPED)) == 2
        assert archive.count(Query(reward_min=0.5)) == 4
        assert archive.count(Query(reward_max=0.5, step=1)) == 1
        assert archive.count(Query(has_mismatch=True)) == 2
        assert archive.count(Query(status=Status.FAILED)) == 0
        dropped = archive.select(Query(verdict=Verdict.DROPPED), limit=5)
        assert [(each.trajectory_id, each.reason) for each in dropped] == [
            ("g3.0", "stale"),
            ("g3.1", "stale"),
        ]
        newest = archive.select(Query(order_by="step", descending=True), limit=2, offset=1)
        assert [each.trajectory_id for each in newest] == ["g2.0", "g1.1"]
        assert archive.groups(2) == ["g2"]
        assert [each.step for each in archive.steps()] == [0, 1, 2]
        assert archive.steps()[1].num_mismatches == 2


@pytest.mark.parametrize(
    ("text", "count"), [("g1.1", 1), ("QUESTION", 8), ("g2.", 2), ("%%%", 0), ('g2"', 0)]
)
def test_a_conversation_is_found_by_any_part_of_its_text(
    library: Library, text: str, count: int
) -> None:
    """Whatever the case, and nothing in it is a wildcard."""
    with Archive.open(library.folder) as archive:
        assert archive.count(Query(text=text)) == count


def test_what_is_not_there_is_said_by_name(
    library: Library, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A wrong name and a run without an archive are two faults, told apart."""
    with Archive.open(library.folder) as archive, pytest.raises(Unknown, match=r"g9\.0"):
        archive.read("g9.0")
    with pytest.raises(NoArchive):
        Archive.open(tmp_path_factory.mktemp("bare"))


@dataclass(slots=True)
class Count:
    """How much SQLite did."""

    instructions: int = 0

    def __call__(self) -> int:
        self.instructions += EVERY
        return 0


@contextmanager
def counted(archive: Archive) -> Iterator[Count]:
    count = Count()
    archive.base.set_progress_handler(count, EVERY)
    yield count
    archive.base.set_progress_handler(None, 0)


def test_a_page_of_many_trajectories_takes_few_steps_of_sqlite(tmp_path: Path) -> None:
    """A web page of a large run opens in under a second: an index that is not used shows here.

    What counts is what SQLite does, not how fast the machine does it; one instruction takes some
    tens of nanoseconds, so a hundred thousand trajectories have less than a second.
    """
    fill_index(tmp_path, NUM_MANY)
    queries = (
        (Query(), SCAN),
        (Query(order_by="advantage", descending=True), SCAN),
        (Query(order_by="trajectory_id"), SCAN),
        (Query(step=70), LOOK_UP),
        (Query(reward_min=0.5, staleness_min=2, has_mismatch=True), SCAN),
        (Query(text="number 9999"), LOOK_UP),
        (Query(text="seven lookup", order_by="reward"), SCAN),
    )
    with Archive.open(tmp_path) as archive:
        assert archive.count(Query()) == NUM_MANY
        for query, most in queries:
            with counted(archive) as count:
                found = archive.select(query, limit=50)
                assert archive.count(query) >= len(found) > 0, query
            assert count.instructions < most * NUM_MANY, query
        with counted(archive) as count:
            assert len(archive.steps()) > 100
        assert count.instructions < 2 * SCAN * NUM_MANY, "each is gathered into its step"


def test_a_page_that_breaks_under_a_reader_is_named_with_what_to_do(library: Library) -> None:
    """A disk fails, or somebody writes the file: the records are there, and the index follows."""
    Archive.open(library.folder).close()
    path = library.folder / FOLDER / INDEX
    with Archive.open(library.folder) as archive:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        for ask in (
            lambda: archive.count(Query(text="Question")),
            lambda: archive.select(Query(), limit=5),
            lambda: archive.groups(2),
            archive.steps,
            lambda: archive.read("g1.1"),
        ):
            with pytest.raises(IndexDamaged, match=r"index.sqlite is damaged \(.*\), remove it"):
                ask()
    path.unlink()
    with Archive.open(library.folder) as archive:
        assert archive.count(Query()) == 8


def test_a_row_is_read_though_what_the_trainer_wrote_of_it_is_damaged(library: Library) -> None:
    """The row lies in another file, and is worth to be seen; why the rest is missing is said."""
    Archive.open(library.folder).close()
    path = library.path("trainer-0")
    path.write_bytes(bytes(path.stat().st_size))
    with Archive.open(library.folder) as archive:
        (entry, *_) = (each for each in archive.select(Query(), limit=8) if each.step is not None)
        stored = archive.read(entry.trajectory_id)
        training = stored.training
        assert training is not None
        assert (training.logprobs, training.contracts) == (None, {})
        assert "trainer-0/000001.log, byte " in training.problem
        path.unlink()
        training = archive.read(entry.trajectory_id).training
        assert training is not None
        assert "000001.log is gone; `milepost audit` says more" in training.problem


def test_a_row_that_the_door_refused_comes_with_what_it_found(library: Library) -> None:
    """Refused rows are the ones that people open, and they ask which contract failed."""
    one = library.rows[-1]
    for step, said in ((3, "prefix [0, 5) hashes to ab"), (4, "prefix [0, 9) hashes to cd")):
        trainer = ArchiveWriter(author(library.folder, "trainer-0"))
        verdicts = {"C1": said, "C4": "passed"}
        refused = Refused(
            key=key_of(one), trajectory_id="g3.1", row=0, step=step, contracts=verdicts
        )
        trainer.write([(refused, None)])
        trainer.close()
    with Archive.open(library.folder) as archive:
        (refusal,) = archive.read("g3.1").refusals
        assert refusal is not None
        assert (refusal.step, refusal.contracts) == (4, verdicts)
        assert archive.read("g3.0").refusals == archive.read("g1.1").refusals == (None,)
        library.path("trainer-0", 3).unlink()
        (refusal,) = archive.read("g3.1").refusals
        assert refusal is not None
        assert (refusal.step, refusal.contracts) == (4, {})
        assert "000003.log is gone" in refusal.problem


def test_what_the_trainer_wrote_is_shown_and_not_what_the_index_says_of_it(
    library: Library,
) -> None:
    """The index may be written by anybody; a place of another record is none."""
    path = library.folder / FOLDER / INDEX
    with Archive.open(library.folder) as archive, sqlite3.connect(path) as base:
        base.execute("UPDATE trained SET advantage = 99, step = 77, staleness = 9")
        base.commit()
        training = archive.read("g1.1").training
        assert training is not None
        assert (training.advantage, training.step, training.staleness) == (0.5, 1, 0)
        base.execute("UPDATE trained SET offset = 0")
        base.commit()
        training = archive.read("g1.1").training
        assert training is not None
        assert "speaks of something else" in training.problem
    base.close()
