"""What killed writers leave half written goes with the run, and nothing whole ever does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milepost.actors.weights.manifest import INDEX
from milepost.actors.weights.versions import Versions
from milepost.supervisor.checkpoints import META, checkpoint_folder
from milepost.supervisor.cleanup.halves import remove_halves
from milepost.supervisor.cleanup.processes import Identity, boot_id, identity_of
from milepost.supervisor.cleanup.reaper import StillRunning, reap
from milepost.supervisor.cleanup.registry import PRIVATE, Registry, identity_record
from milepost.supervisor.cleanup.unfinished import SUMMARY

RUN = f"{os.getpid():016x}"
GONE = Identity(2**22 - 1, 1, boot_id())


def write(folder: Path, last: str = "") -> Path:
    """A folder with some bytes, and with the file that is written last if it has a name."""
    folder.mkdir(parents=True)
    (folder / "some.bytes").touch()
    if last:
        (folder / last).write_text("{}")
    return folder


def replaced(folder: Path, step: int) -> Path:
    final = checkpoint_folder(folder, step)
    return write(final.with_name(f".{final.name}.replaced"), META)


def halves(folder: Path) -> list[Path]:
    """One of each kind."""
    final, versions = checkpoint_folder(folder, 6), Versions(folder / "weights")
    return [
        write(final.with_name(f".{final.name}.partial")),
        replaced(folder, 4),
        write(folder / "evaluation" / "version_000006.part"),
        write(versions.full_folder(6)),
        write(versions.folder(6)),
    ]


def whole_ones(folder: Path) -> list[Path]:
    """What a run goes on from, and what nobody knows."""
    versions = Versions(folder / "weights")
    return [
        write(checkpoint_folder(folder, 4), META),
        replaced(folder, 5),
        write(folder / "checkpoints" / "step_of_mine.partial"),
        write(folder / "evaluation" / "version_000004"),
        write(versions.full_folder(4), INDEX),
        write(versions.folder(5), INDEX),
        write(folder / "weights" / "mine"),
    ]


def belongs_to(folder: Path, supervisor: Identity, *owned: dict[str, object]) -> None:
    """The registry of a run in this folder."""
    (folder / PRIVATE).mkdir(exist_ok=True)
    begun = {"kind": "run", "run_id": RUN, "supervisor": identity_record(supervisor)}
    Registry(folder).append(begun, *owned)


def test_who_cleans_up_behind_a_dead_run_takes_its_halves(tmp_path: Path) -> None:
    """Ctrl-C twice while the trainer saves: as many bytes as a checkpoint, that nobody counts."""
    whole, half = whole_ones(tmp_path), halves(tmp_path)
    belongs_to(tmp_path, GONE)
    reaped = reap(tmp_path)
    assert reaped.problems == []
    assert sorted(reaped.halves) == sorted(map(str, half))
    assert not any(each.exists() for each in half)
    assert all((each / "some.bytes").exists() for each in whole)


def test_a_run_that_goes_on_keeps_what_it_writes(tmp_path: Path) -> None:
    half = halves(tmp_path)
    alive = identity_of(os.getpid())
    assert alive is not None
    belongs_to(tmp_path, alive)
    with pytest.raises(StillRunning):
        reap(tmp_path)
    assert all(each.exists() for each in half)


def test_they_stay_as_long_as_something_of_the_run_may_still_write(tmp_path: Path) -> None:
    half = halves(tmp_path)
    belongs_to(tmp_path, GONE, {"kind": "folder", "path": str(write(tmp_path / "precious"))})
    assert len(reap(tmp_path).problems) == 1
    assert all(each.exists() for each in half)


def test_one_that_cannot_be_removed_is_named_and_tried_again(tmp_path: Path) -> None:
    half = halves(tmp_path)[0]
    aside = half.rename(tmp_path / "aside")
    half.symlink_to(aside)  # which no tree is removed through
    belongs_to(tmp_path, GONE)
    (problem,) = reap(tmp_path).problems
    assert problem.startswith("what was half written cannot be removed: ")
    half.unlink()
    aside.rename(half)
    reaped = reap(tmp_path)
    assert (reaped.problems, half.exists()) == ([], False)


def test_a_folder_without_any_is_left_as_it_is(tmp_path: Path) -> None:
    assert remove_halves(tmp_path) == remove_halves(tmp_path / "nowhere") == []
    belongs_to(tmp_path, GONE)
    reap(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {PRIVATE, SUMMARY}
