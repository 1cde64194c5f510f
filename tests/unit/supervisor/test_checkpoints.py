"""Checkpoints that a run folder holds, after a trainer was killed at the worst moment."""

from __future__ import annotations

from pathlib import Path

from milepost.supervisor.checkpoints import META, checkpoint_folder, last_checkpoint, put_back


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / META).write_text(text, encoding="utf-8")


def test_a_checkpoint_that_was_being_replaced_has_its_name_again(tmp_path: Path) -> None:
    """Killed between two renames; a run with one checkpoint would begin from step 0."""
    final = checkpoint_folder(tmp_path, 4)
    write(final.with_name(f".{final.name}.replaced"), "old")
    assert last_checkpoint(tmp_path) is None
    put_back(tmp_path)
    assert last_checkpoint(tmp_path) == 4
    assert [path.name for path in final.parent.iterdir()] == [final.name]


def test_a_checkpoint_that_was_replaced_stays_the_new_one(tmp_path: Path) -> None:
    final = checkpoint_folder(tmp_path, 4)
    write(final, "new")
    write(final.with_name(f".{final.name}.replaced"), "old")
    put_back(tmp_path)
    assert (final / META).read_text(encoding="utf-8") == "new"
