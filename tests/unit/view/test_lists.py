"""What the pages of runs, steps, groups and searches are made of; and how little they read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from unit.archive.kit import fill_index
from unit.report.kit import STEPS
from unit.view.kit import EVIL, Shelf

from milepost.actors.archive.query import Entry, Query
from milepost.actors.archive.reader import Archive, Unknown
from milepost.launch.view.details import BESIDE_MAX, group_page, open_row
from milepost.launch.view.links import Links
from milepost.launch.view.lists import (
    FOUND_MAX,
    GROUPS_MAX,
    MEMBERS_MAX,
    STEPS_MAX,
    NotThere,
    run_page,
    runs_page,
    search_page,
    step_page,
)
from milepost.launch.view.runs import NoSuchRun, OpenRun, Runs


def test_a_folder_of_runs_lists_each_by_how_it_stands(tmp_path: Path, links: Links) -> None:
    shelf = Shelf(tmp_path / "runs").write()
    failed = shelf.copy("lookup-2", status="failed")
    killed = shelf.copy("lookup-3")
    (killed / "summary.json").unlink()
    broken = shelf.copy("lookup-4")
    (broken / "topology.toml").write_text("[run\n")
    strange = shelf.copy("lookup-5")
    (strange / "summary.json").write_text("[1, 2]")
    (shelf.folder / "no run").mkdir()
    for at, folder in enumerate((shelf.run, failed, killed, broken, strange)):
        os.utime(folder / "topology.toml", (at, at))
    lines = runs_page(Runs(shelf.folder), 1, links)["runs"]
    assert [(line.name, line.state) for line in lines] == [
        ("lookup-5", "unreadable"),
        ("lookup-4", "unreadable"),
        ("lookup-3", "killed"),
        ("lookup-2", "failed"),
        ("lookup-1", "done"),
    ]
    assert "topology.toml" in lines[1].problem
    assert (lines[4].step, lines[4].steps, lines[4].took_s) == (STEPS, STEPS, 32.6)
    assert lines[3].reward == pytest.approx(lines[3].success, abs=0.05)


def test_a_run_with_damaged_files_has_its_page_and_says_what_is_missing(
    tmp_path: Path, links: Links
) -> None:
    """One bit of one line of three files that only grow: everything else is worth to be seen."""
    shelf = Shelf(tmp_path / "runs").write()
    metrics = shelf.run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"time"', b'"tyme"', 1))
    (shelf.run / ".milepost").mkdir(exist_ok=True)
    (shelf.run / ".milepost/registry.jsonl").write_text("nonsense\n")
    (shelf.run / "summary.json").write_text('{"status": ')
    facts = run_page(Runs(shelf.folder).open(shelf.run.name), 1, links)
    assert facts["state"] == "unreadable"
    assert facts["damaged"][0].startswith("summary.json is damaged: ")
    assert facts["damaged"][1].startswith("metrics.jsonl, line 1 is damaged and left out: ")
    (shelf.run / "summary.json").unlink()
    facts = run_page(Runs(shelf.folder).open(shelf.run.name), 1, links)
    assert facts["state"] == "unreadable", "nobody knows whether it goes on"


def test_what_is_removed_while_somebody_looks_is_not_there_and_hides_nothing(
    tmp_path: Path, links: Links
) -> None:
    """Nor does a summary that is none: one of them took the whole list with it."""
    shelf = Shelf(tmp_path / "runs").write()
    strange, gone = shelf.copy("lookup-6"), shelf.copy("lookup-7")
    (strange / "summary.json").write_text("[]")
    (strange / "versions.json").write_text("[]")
    runs = Runs(shelf.folder)
    names = runs.names()
    shutil.rmtree(gone)
    assert [runs.line(name).state for name in names if name != "lookup-1"] == ["unreadable"] * 2
    assert (runs.is_there("lookup-6"), runs.is_there("lookup-7")) == (True, False)
    with pytest.raises(NoSuchRun, match="lookup-7"):
        runs.open("lookup-7")
    runs.close()
    empty = Runs(gone)
    assert runs_page(empty, 1, links)["runs"] == []


def test_the_folder_of_one_run_is_a_list_of_one(shelf: Shelf, links: Links) -> None:
    runs = Runs(shelf.run)
    assert [line.name for line in runs_page(runs, 1, links)["runs"]] == ["lookup-1"]
    assert runs.open("lookup-1").folder == shelf.run.resolve()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../model", "lookup-1/../lookup-1", "/etc", "lookup-1/logs", "a\0b"]
)
def test_a_name_is_looked_up_in_the_list_and_never_walked_to(runs: Runs, name: str) -> None:
    with pytest.raises(NoSuchRun):
        runs.open(name)


def test_a_run_shows_what_its_report_says(run: OpenRun, links: Links) -> None:
    """One source: the sentences, the table and the curves are those of the report."""
    facts = run_page(run, 1, links)
    assert [tile.value for tile in facts["tiles"]] == ["96%", "100%", "80", "33 s", "14"]
    assert "rose from 11.3% to 96.5%" in next(iter(facts["changes"]))
    assert [len(panel.series[0].x) for panel in facts["charts"]] == [STEPS] * 3
    assert [row.step for row in facts["steps"]] == list(range(79, 79 - STEPS_MAX, -1))
    assert facts["steps"][0].version == STEPS
    assert [name for name, _ in facts["columns"]][:3] == ["reward", "success", "loss"]


def test_a_run_under_way_grows_and_then_ends(tmp_path: Path, links: Links) -> None:
    """Each look reads what is new: a page of a running run is never an old one."""
    folder = Shelf(tmp_path / "runs").write().run
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:11]))
    run = Runs(folder).open(folder.name)
    first = run_page(run, 1, links)
    assert (first["state"], first["steps"][0].version, list(first["changes"])) == ("killed", 10, [])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(lines[11:]))
    (folder / "summary.json").write_text(summary)
    last = run_page(run, 1, links)
    assert (last["state"], last["steps"][0].version) == ("done", STEPS)
    run.close()


def test_a_step_shows_its_groups_and_every_metric(run: OpenRun, links: Links) -> None:
    facts = step_page(run, 2, 1, links)
    (group,) = facts["groups"]
    assert [(one.reward, one.advantage) for one in group.members] == [
        (0.0, -1.5),
        (1.0, -0.5),
        (2.0, 0.5),
        (3.0, 1.5),
    ]
    assert (group.staleness, group.prompt) == (2, "train-g0")
    assert dict(facts["metrics"])["train/loss"] == 0.01
    assert step_page(run, 50, 1, links)["groups"] == []
    with pytest.raises(NotThere, match="no step 80: 80 are trained"):
        step_page(run, 80, 1, links)


def test_members_stand_side_by_side_with_what_they_said(run: OpenRun, links: Links) -> None:
    facts = group_page(run, "g1", 1, links)
    assert [member.entry.trajectory_id for member in facts["members"]] == [
        f"g1.{number}" for number in range(4)
    ]
    kinds = [line.kind for line in facts["members"][0].lines]
    assert kinds == ["user", "call", "tool", "model"]
    with pytest.raises(NotThere, match="nobody"):
        group_page(run, "nobody", 1, links)


def test_a_member_whose_record_is_damaged_hides_none_of_its_siblings(
    tmp_path: Path, links: Links
) -> None:
    """A bad block of the disk, in the middle of a file."""
    shelf = Shelf(tmp_path / "runs").write()
    Archive.open(shelf.run).close()  # so that the index knows all of them
    (file,) = (shelf.run / "archive" / "buffer").glob("*.log")
    data = bytearray(file.read_bytes())
    place = data.index(b"g1.2") + 8
    data[place : place + 4] = b"\0\0\0\0"
    file.write_bytes(data)
    runs = Runs(shelf.folder)
    members = group_page(runs.open("lookup-1"), "g1", 1, links)["members"]
    assert [bool(member.problem) for member in members] == [False, False, True, False]
    assert [len(member.lines) for member in members] == [4, 4, 0, 4]
    runs.close()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({}, 14),
        ({"verdict": "dropped"}, 2),
        ({"status": "truncated"}, 1),
        ({"reward_min": "2", "reward_max": "2"}, 3),
        ({"staleness_min": "2"}, 12),
        ({"mismatch": "yes"}, 1),
        ({"text": "document.title"}, 1),
        ({"step": "3", "group": "g1"}, 4),
        ({"group": EVIL}, 0),
    ],
)
def test_a_search_leaves_what_its_words_say(
    run: OpenRun, links: Links, words: dict[str, str], found: int
) -> None:
    facts = search_page(run, words, links)
    assert len(facts["found"]) == facts["page"].total == found


def test_a_row_is_opened_at_the_page_of_the_token_asked_for(run: OpenRun) -> None:
    opened = open_row(run, "g0.1", {"from": "40", "attempt": "0"})
    assert (opened.start, opened.end) == (0, opened.row.token_ids.shape[0])
    with pytest.raises(NotThere, match="1 rows"):
        open_row(run, "g0.1", {"row": "3"})
    with pytest.raises(Unknown):
        open_row(run, "g0.1", {"attempt": "7"})


def test_a_run_without_an_archive_says_so(tmp_path: Path, links: Links) -> None:
    shelf = Shelf(tmp_path / "runs").write()
    run = Runs(shelf.folder).open(shelf.copy("bare").name)
    assert not run_page(run, 1, links)["has_archive"]
    assert step_page(run, 2, 1, links)["groups"] == []
    with pytest.raises(NotThere, match="has kept no trajectories"):
        search_page(run, {}, links)


class CountedArchive(Archive):
    """Counts what pages take out of it."""

    rows = calls = 0

    def select(self, query: Query, *, limit: int, offset: int = 0) -> list[Entry]:
        found = Archive.select(self, query, limit=limit, offset=offset)
        CountedArchive.rows += len(found)
        CountedArchive.calls += 1
        return found


@pytest.mark.parametrize("count", [500, 4000])
def test_a_page_reads_no_more_of_a_large_run_than_of_a_small_one(
    tmp_path: Path, links: Links, count: int
) -> None:
    """Pages of a run of 100,000 trajectories open at once because they read what they show."""
    shelf = Shelf(tmp_path / "runs").write()
    folder = shelf.copy("large")
    fill_index(folder, count)
    run = OpenRun(folder, CountedArchive.open)

    def reads(make: Any, *args: Any) -> tuple[int, int]:
        CountedArchive.rows = CountedArchive.calls = 0
        make(run, *args, links)
        return CountedArchive.rows, CountedArchive.calls

    assert reads(run_page, 1) == (0, 0)
    assert reads(search_page, {"text": "answer", "order": "-reward"}) == (FOUND_MAX, 1)
    rows, calls = reads(step_page, 3, 1)
    assert calls <= GROUPS_MAX
    assert rows <= GROUPS_MAX * min(MEMBERS_MAX, 8)
    assert FOUND_MAX >= BESIDE_MAX
    run.close()
