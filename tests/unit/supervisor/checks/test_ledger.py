"""A resume whose ledger and checkpoint contradict each other is refused before anything changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.actors.journal import JournalFile
from milepost.actors.rollout.records import (
    Checkpointed,
    Issued,
    Record,
    Stored,
    Trained,
    encode_record,
)
from milepost.configs.dump import dump_topology
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.supervisor.checkpoints import META, checkpoint_folder
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.ledger import ledger_fits
from milepost.supervisor.checks.resume import resume_goes_on

STEPS = 4


@pytest.fixture
def resumed(tmp_path: Path) -> Subject:
    """A run of four steps, each of one group; one checkpoint is kept, and covers all of them."""
    journal = JournalFile(tmp_path / "journal" / "rollout")
    records: list[Record] = []
    for step in range(1, STEPS + 1):
        name = f"g{step - 1:07d}"
        records += [Issued(group=name, position=step - 1), Stored(groups=(name,))]
        records.append(Trained(groups=(name,), step=step))
    journal.append(map(encode_record, (*records, Checkpointed(step=STEPS))))
    journal.close()
    save(tmp_path, STEPS)
    document = {"run": {"name": "tiny", "steps": STEPS, "checkpoints_keep": 1}}
    return Subject(decode(document), Machine.look(tmp_path), tmp_path, resuming=True)


def save(run: Path, step: int) -> None:
    """A checkpoint of so many groups, none of which it names."""
    folder = checkpoint_folder(run, step)
    folder.mkdir(parents=True)
    meta = {"step": step, "trained_group_ids": [], "trained_before": step}
    (folder / META).write_text(json.dumps(meta))


def problem(subject: Subject) -> Problem:
    (found,) = ledger_fits(subject)
    assert isinstance(found, Problem)
    assert subject.run_folder is not None
    assert found.where == str(subject.run_folder / "journal" / "rollout")
    return found


def test_books_that_fit_are_left_as_they_are(resumed: Subject) -> None:
    assert resumed.run_folder is not None
    path = resumed.run_folder / "journal" / "rollout"
    before = path.read_bytes()
    assert list(ledger_fits(resumed)) == []
    assert path.read_bytes() == before
    path.unlink()
    assert list(ledger_fits(replace(resumed, resuming=False))) == []


def test_an_older_checkpoint_than_the_ledger_can_go_back_to_is_refused(resumed: Subject) -> None:
    """Somebody removed the newest one: the buffer would already have gone back to it."""
    assert resumed.run_folder is not None
    (checkpoint_folder(resumed.run_folder, STEPS) / META).unlink()
    save(resumed.run_folder, 2)
    found = problem(resumed)
    assert "counts 2 trained groups" in found.what
    assert "knows of 4" in found.what
    assert found.remedy.startswith("put the newer one back")


def test_a_ledger_that_is_gone_is_refused(resumed: Subject) -> None:
    """Going on would train the same groups again."""
    assert resumed.run_folder is not None
    (resumed.run_folder / "journal" / "rollout").unlink()
    found = problem(resumed)
    assert "counts 4 trained groups" in found.what
    assert found.remedy.startswith("put it back")


def test_a_damaged_ledger_is_refused(resumed: Subject) -> None:
    assert resumed.run_folder is not None
    path = resumed.run_folder / "journal" / "rollout"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    found = problem(resumed)
    assert "fails its checksum" in found.what
    assert found.remedy == "put a copy of it back, or start a fresh run"


def test_a_ledger_of_something_else_is_refused(resumed: Subject) -> None:
    """Its records are whole, and say nothing that a ledger says."""
    assert resumed.run_folder is not None
    path = resumed.run_folder / "journal" / "rollout"
    path.unlink()
    journal = JournalFile(path)
    journal.append([b"{}"])
    journal.close()
    assert "the ledger of the run to resume cannot be read" in problem(resumed).what


@pytest.mark.parametrize("text", ["{", '{"step": 4}'])
def test_a_checkpoint_that_cannot_be_read_is_told_once(resumed: Subject, text: str) -> None:
    """By the check of what a resumed run goes on from."""
    assert resumed.run_folder is not None
    (checkpoint_folder(resumed.run_folder, STEPS) / META).write_text(text)
    assert list(ledger_fits(resumed)) == []
    (resumed.run_folder / "topology.toml").write_text(dump_topology(resumed.topology))
    (told,) = resume_goes_on(resumed)
    assert f"its {META} cannot be read" in str(told)
