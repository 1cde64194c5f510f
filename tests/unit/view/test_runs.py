"""A viewer that stays open: its run goes on in another life, or gives its place to another run."""

from __future__ import annotations

import shutil
from pathlib import Path

from unit.archive.kit import author, judged
from unit.view.kit import Shelf, came, iter_clock, trained

from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.query import LOST_AT_RESUME, Query
from milepost.actors.archive.reader import Archive
from milepost.actors.archive.writer import ArchiveWriter
from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.launch.view.details import group_page
from milepost.launch.view.links import Links
from milepost.launch.view.lists import search_page, step_page
from milepost.launch.view.runs import OpenRun, Runs


def _num_kept(run: OpenRun) -> int:
    assert run.archive is not None
    return run.archive.count(Query())


def _add_group(shelf: Shelf, name: str, run_id: str) -> None:
    buffer = ArchiveWriter(author(shelf.run, run_id=run_id), clock=iter_clock())
    group = [shelf.row(f"{name}.{member}", 0, 1.0) for member in range(4)]
    buffer.write([came(row) for row in group])
    buffer.write([judged(*group)])
    buffer.close()


def test_what_a_resumed_run_adds_is_found_when_it_has_ended(tmp_path: Path) -> None:
    """Seen while it went on or not: at each end there is something that had no place before."""
    shelf = Shelf(tmp_path / "runs").write()
    runs = Runs(shelf.folder)
    summary = shelf.run / "summary.json"
    assert _num_kept(runs.open("lookup-1")) == 14
    for life, is_seen in enumerate((True, False), start=1):
        told = summary.read_text()
        summary.unlink()
        if is_seen:
            assert _num_kept(runs.open("lookup-1")) == 14 + 4 * (life - 1)
        _add_group(shelf, f"life{life}", f"life {life}")
        summary.write_text(f"{told} ")
        assert _num_kept(runs.open("lookup-1")) == 14 + 4 * life
    runs.close()


def test_an_archive_is_opened_once_while_nothing_ends(shelf: Shelf) -> None:
    """Else every page of a large run would wait for it."""
    opened: list[Path] = []

    def count(folder: Path) -> Archive:
        opened.append(folder)
        return Archive.open(folder)

    runs = Runs(shelf.folder, count)
    for _ in range(3):
        _num_kept(runs.open("lookup-1"))
    assert len(opened) == 1
    runs.close()


def test_another_run_in_the_place_of_one_is_shown_with_its_own_files(tmp_path: Path) -> None:
    """The old one's index stays readable for whoever has it open, removed or not."""
    shelf = Shelf(tmp_path / "runs").write()
    runs = Runs(shelf.folder)
    held = runs.open("lookup-1")
    assert _num_kept(held) == 14
    kept = {name: (shelf.run / name).read_text() for name in ("topology.toml", "summary.json")}
    metrics = (shelf.run / "metrics.jsonl").read_text().replace("rollout/solved", "rollout/right")
    shutil.rmtree(shelf.run)
    assert held.archive is None
    shelf.run.mkdir()
    (shelf.run / "metrics.jsonl").write_text(metrics)
    for name, text in kept.items():
        (shelf.run / name).write_text(text)
    topology = load_topology(str(shelf.run / "topology.toml"))
    text = dump_topology(topology).replace('success_metric = "solved"', 'success_metric = "right"')
    (shelf.run / "topology.toml").write_text(text)
    _add_group(shelf, "new", "another run")
    run = runs.open("lookup-1")
    assert _num_kept(run) == 4
    record = run.files.record()
    assert record.success_name == "rollout/right"
    assert record.curve(record.success_name)
    runs.close()


def test_members_of_two_lives_are_not_of_one_batch(tmp_path: Path) -> None:
    """Step 2 was trained, lost at a resume, and trained again with what was sampled anew."""
    shelf = Shelf(tmp_path / "runs").write()
    buffer = ArchiveWriter(author(shelf.run), clock=iter_clock())
    trainer = ArchiveWriter(author(shelf.run, "trainer-0"), clock=iter_clock())
    old = [shelf.row(f"g0.{member}", 0, float(member)) for member in range(4)]
    buffer.write([judged(*old, verdict=Verdict.DROPPED, reason=LOST_AT_RESUME)])
    new = [shelf.row(f"g0.{member}", 0, 5.0, said="anew") for member in range(3)]
    buffer.write([came(row) for row in new])
    buffer.write([judged(*new)])
    trainer.write([trained(row, 2) for row in new])
    buffer.close()
    trainer.close()
    run, links = OpenRun(shelf.run, Archive.open), Links("/token")
    (group,) = step_page(run, 2, 1, links)["groups"]
    assert [member.reward for member in group.members] == [5.0] * 3
    assert search_page(run, {"step": "2"}, links)["page"].total == 3
    page = group_page(run, "g0", 1, links)
    assert page["tiles"][:2] == [
        ("members", "3", "and 4 lost at a resume"),
        ("reward", "5.000", "mean of those below"),
    ]
    assert page["step"] == 2
    lost = search_page(run, {"group": "g0", "verdict": "dropped"}, links)
    assert {entry.reason for entry in lost["found"]} == {LOST_AT_RESUME}
    run.close()


def test_a_group_that_is_lost_as_a_whole_is_shown_without_a_step(tmp_path: Path) -> None:
    """Else its page would lead to a batch that it is not in."""
    shelf = Shelf(tmp_path / "runs").write()
    buffer = ArchiveWriter(author(shelf.run), clock=iter_clock())
    old = [shelf.row(f"g0.{member}", 0, float(member)) for member in range(4)]
    buffer.write([judged(*old, verdict=Verdict.DROPPED, reason=LOST_AT_RESUME)])
    buffer.close()
    run, links = OpenRun(shelf.run, Archive.open), Links("/token")
    page = group_page(run, "g0", 1, links)
    assert (len(page["members"]), page["step"]) == (4, None)
    assert step_page(run, 2, 1, links)["groups"] == []
    run.close()


def test_an_index_that_was_made_anew_replaces_the_one_that_is_open(tmp_path: Path) -> None:
    """Somebody removed a damaged one, as its error says, while a viewer had it open."""
    shelf = Shelf(tmp_path / "runs").write()
    run = OpenRun(shelf.run, Archive.open)
    first = run.archive
    for path in (shelf.run / "archive").glob("index.sqlite*"):
        path.unlink()
    assert _num_kept(run) == 14
    assert run.archive is not first
    run.close()
