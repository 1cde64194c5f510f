"""The index of an archive is held against the records, and made again from them when it broke."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from unit.archive.kit import MODEL, SQLITE_PAGE, Library, author, broken

from milepost.actors.archive.__main__ import main
from milepost.actors.archive.audit import audit
from milepost.actors.archive.layout import Refused, key_of
from milepost.actors.archive.reader import Archive
from milepost.actors.archive.writer import ArchiveWriter


def test_an_index_that_says_otherwise_is_found(tmp_path: Path) -> None:
    """What a page shows comes from the index: it must be what the records say."""
    library = Library(tmp_path).write()
    assert audit(library.folder).faults == []
    with sqlite3.connect(tmp_path / "archive" / "index.sqlite") as base:
        base.execute("UPDATE trajectories SET reward = 9 WHERE trajectory_id = 'g0.0'")
    base.close()
    (found,) = audit(library.folder).faults
    assert (found.contract, found.trajectory_id) == ("index", "g0.0")
    assert "reward is 9.0, the records 0.0" in found.text


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("UPDATE trained SET advantage = 99", "advantage is 99.0, the records 0.5"),
        ("UPDATE trained SET step = 3", "step is 3, the records 0"),
        ("UPDATE trained SET time = 1", "time is 1.0"),
        ("UPDATE trained SET offset = offset + 1", "place is "),
        ("DELETE FROM trained", "does not know that it was trained"),
        ("UPDATE trained SET key = 'x' || key", "was trained, which no record says"),
        ("UPDATE trajectories SET group_rewards = '9.0,9.0'", "group_rewards is '9.0,9.0'"),
        ("UPDATE trajectories SET time = 1", "time is 1.0"),
        ("UPDATE trajectories SET segment = 'x'", "place is 'buffer/x:"),
        ("UPDATE trajectories SET key = 'x' || key", "of which there is no record"),
        ("DELETE FROM trajectories", "the index does not know it"),
        ("DELETE FROM conversations", "is not its conversation"),
        ("UPDATE conversations SET text = 'none'", "is not its conversation"),
        ("DELETE FROM refused", "does not know once that row"),
        ("UPDATE refused SET step = 7", "was refused in step 7"),
        ("INSERT INTO refused SELECT * FROM refused", "does not know once that row"),
    ],
)
def test_no_half_of_the_index_says_what_the_records_do_not(
    tmp_path: Path, statement: str, text: str
) -> None:
    """Pages are made of every table: each of them must follow from the records."""
    library = refusing(tmp_path)
    assert audit(tmp_path).faults == []
    with sqlite3.connect(tmp_path / "archive" / "index.sqlite") as base:
        base.execute(statement)
    base.close()
    found = audit(library.folder).faults
    assert {each.contract for each in found} == {"index"}
    assert any(text in each.text for each in found), found


def refusing(folder: Path) -> Library:
    """A library whose last row was refused."""
    library = Library(folder, groups=2).write()
    trainer = ArchiveWriter(author(folder, "trainer-0", model=MODEL))
    key = key_of(library.rows[-1])
    verdicts = {"C1": "prefix [0, 5) hashes to ab"}
    head = Refused(key=key, trajectory_id="g1.1", row=0, step=3, contracts=verdicts)
    trainer.write([(head, None)])
    trainer.close()
    return library


def test_a_broken_index_is_made_again_and_the_records_are_checked(tmp_path: Path) -> None:
    """It follows from the records: what is wrong with it alone is wrong with nothing else."""
    library = Library(tmp_path).write()
    assert audit(tmp_path).faults == []
    path = tmp_path / "archive" / "index.sqlite"
    whole = path.read_bytes()
    for start in range(0, len(whole), SQLITE_PAGE):
        path.write_bytes(broken(whole, start))
        report = audit(library.folder)
        assert (report.faults, report.notes) == ([], []), f"broken at {start}"
    with Archive.open(tmp_path) as archive:
        assert archive.read("g0.0").training is not None


def test_an_archive_that_cannot_be_read_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that fails is no fault of what was written, and no archive that passed."""
    library = Library(tmp_path).write()
    library.path("trainer-0").unlink()
    library.path("trainer-0").mkdir()
    assert main([str(tmp_path)]) == 3
    assert "cannot be read" in capsys.readouterr().err
