"""The pages that list things: runs, the steps of a run, the groups of a step, a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.query import Entry, Query
from milepost.actors.archive.reader import Archive
from milepost.configs.run import Mode
from milepost.launch.display.progress import LOSS, REWARD, STALENESS, TOKENS
from milepost.launch.reading import WAIT, read_flow
from milepost.launch.report import words
from milepost.launch.report.page import Tile, cause_of, scores, tiles
from milepost.launch.report.panels import panels
from milepost.launch.report.record import Record
from milepost.launch.view.links import Links
from milepost.launch.view.paging import page_links, page_number, paging
from milepost.launch.view.runs import OpenRun, Runs, state_of
from milepost.launch.view.searching import ORDERS, is_narrow, query_of
from milepost.messages.shared import Status

RUNS_MAX: Final = 50
STEPS_MAX: Final = 25
GROUPS_MAX: Final = 50
MEMBERS_MAX: Final = 256
"""Of one group that are looked at in a list of groups."""
FOUND_MAX: Final = 50
Facts = dict[str, Any]


class NotThere(LookupError):
    """The address names something that the run does not have."""


class StepRow(Struct, frozen=True, kw_only=True):
    """One line of a run's table of steps."""

    step: int
    """Number of the batch, from 0: the version that it was trained on top of."""
    version: int
    """That it made."""
    wall_s: float
    metrics: dict[str, float]


class GroupRow(Struct, frozen=True, kw_only=True):
    """One group in a list."""

    name: str
    prompt: str
    members: list[Entry]
    staleness: int | None
    """Of its oldest member."""


def runs_page(runs: Runs, number: int, links: Links) -> Facts:
    """Every run of the folder."""
    names = runs.names()
    page = paging(number, RUNS_MAX, len(names))
    shown = names[page.offset : page.offset + page.size]
    return {
        "folder": str(runs.folder),
        "page": page,
        "pages": page_links(page, links.runs),
        "runs": [runs.line(name) for name in shown],
    }


def run_page(run: OpenRun, number: int, links: Links) -> Facts:
    """One run: what it did, its curves, its steps."""
    record = run.files.record()
    state = "unreadable" if run.files.problem else state_of(run.folder, record.summary)
    steps = [step for step in record.steps if step.done > 0]
    page = paging(number, STEPS_MAX, len(steps))
    newest = steps[::-1][page.offset : page.offset + page.size]
    is_sync = record.topology.run.mode is Mode.SYNC
    return {
        "name": record.topology.run.name,
        "state": state,
        "cause": cause_of(record),
        "damaged": record.damaged,
        "tiles": [*tiles(record), *_archive_tiles(run.archive)],
        "has_archive": run.archive is not None,
        "changes": [] if record.is_supervised or not record.summary else words.changes(record),
        "flow": read_flow([step.metrics for step in record.steps], sync=is_sync),
        "charts": panels(record),
        **scores(record),
        "columns": _columns(record),
        "page": page,
        "pages": page_links(page, lambda n: links.run(run.name, n)),
        "steps": [
            StepRow(step=s.done - 1, version=s.done, wall_s=s.wall_s, metrics=s.metrics)
            for s in newest
        ],
        "places": [(place.name, place.holds) for place in words.places(record)],
        "path": str(run.folder),
    }


def _columns(record: Record) -> list[tuple[str, str]]:
    """(heading, metric) of the table of steps: those that the run has."""
    wanted = [
        ("reward", REWARD),
        ("success", record.success_name),
        ("loss", next((name for name in LOSS if record.curve(name)), LOSS[0])),
        ("staleness", STALENESS[0]),
        ("oldest", STALENESS[1]),
        ("loss tokens", TOKENS),
        ("waited", WAIT),
    ]
    if record.is_supervised:
        wanted = [each for each in wanted if each[0] in {"loss", "loss tokens"}]
    return [(heading, name) for heading, name in wanted if record.curve(name)]


def _archive_tiles(archive: Archive | None) -> list[Tile]:
    if archive is None:
        return []
    total, odd = archive.count(Query()), archive.count(Query(has_mismatch=True))
    note = f"{odd:,} not canonical" if odd else "all canonical"
    return [Tile("trajectories", f"{total:,}", note)]


def step_page(run: OpenRun, step: int, number: int, links: Links) -> Facts:
    """One step: its groups, and every metric of it.

    Raises:
        NotThere: no such step.
    """
    record, archive = run.files.record(), run.archive
    metrics = run.files.steps.whole(step + 1)
    names = archive.groups(step) if archive is not None else []
    if not metrics and not names:
        raise NotThere(f"no step {step}: {record.steps_done} are trained")
    page = paging(number, GROUPS_MAX, len(names))
    shown = names[page.offset : page.offset + page.size]
    groups = [group_row(archive, name) for name in shown] if archive is not None else []
    success = metrics.get(record.success_name)
    return {
        "step": step,
        "version": step + 1,
        "has_archive": archive is not None,
        "has_next": step + 1 < record.steps_done,
        "tiles": [
            Tile("groups", f"{len(names):,}"),
            *_tiles(
                metrics,
                ("reward", REWARD),
                ("oldest token, versions behind", STALENESS[1]),
                ("loss", LOSS[1]),
            ),
            *([] if success is None else [Tile("success", f"{success:.3f}")]),
        ],
        "page": page,
        "pages": page_links(page, lambda n: links.step(run.name, step, n)),
        "groups": groups,
        "metrics": sorted(metrics.items()),
    }


def _tiles(metrics: Mapping[str, float], *named: tuple[str, str]) -> list[Tile]:
    return [Tile(name, f"{metrics[key]:.4g}") for name, key in named if key in metrics]


def group_row(archive: Archive, name: str) -> GroupRow:
    """One group with its members."""
    query = Query(group_id=name, is_lost=False, order_by="trajectory_id")
    members = archive.select(query, limit=MEMBERS_MAX)
    ages = [each.staleness for each in members if each.staleness is not None]
    prompt = members[0].prompt_id if members else ""
    return GroupRow(name=name, prompt=prompt, members=members, staleness=max(ages, default=None))


def search_page(run: OpenRun, given: Mapping[str, str], links: Links) -> Facts:
    """The trajectories that the words of the address leave.

    Raises:
        NotSearchable: a word is no value of its field.
        NotThere: the run keeps no archive.
    """
    archive = run.archive
    if archive is None:
        raise NotThere("this run has kept no trajectories: archive.enabled = false, or none came")
    query = query_of(given)
    page = paging(page_number(given.get("page", "")), FOUND_MAX, archive.count(query))
    found = archive.select(query, limit=page.size, offset=page.offset)
    return {
        **form_facts(given),
        "problem": "",
        "page": page,
        "found": found,
        "is_narrow": is_narrow(query),
        "pages": page_links(page, lambda n: links.search(run.name, **{**given, "page": n})),
    }


def form_facts(given: Mapping[str, str]) -> Facts:
    """What the form of a search needs."""
    return {
        "given": given,
        "statuses": [(status.value, status.value) for status in Status],
        "verdicts": [(verdict.value, verdict.value) for verdict in Verdict],
        "orders": list(ORDERS.items()),
    }
