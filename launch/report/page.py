"""report.html: one file that opens anywhere, on a phone, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from milepost.launch.display.words import seconds
from milepost.launch.report import words
from milepost.launch.report.charts import Panel
from milepost.launch.report.html import environment, render, style
from milepost.launch.report.record import Record
from milepost.launch.report.talk import reading
from milepost.messages.evaluator import Transcript
from milepost.messages.shared import ChatMessage

PHASES: Final = {
    "starting": "start, until all actors were ready",
    "running": "evaluation before, training, evaluation after",
    "draining": "draining",
    "stopping": "stopping",
}
WHO: Final = {"user": "asked", "model": "answers", "call": "calls", "tool": "is told"}


class Tile(NamedTuple):
    """One large figure at the head of a page."""

    name: str
    value: str
    note: str = ""


class Line(NamedTuple):
    """One message as it is shown."""

    kind: str
    who: str
    text: str


def page(record: Record, panels: Iterable[Panel], pair: Iterable[tuple[str, Transcript]]) -> str:
    """The whole page.

    Args:
        record: the run.
        panels: its charts.
        pair: titled conversations to show.
    """
    spent = record.summary["seconds"]
    run = record.topology.run
    talks = [
        {"title": title, "reward": talk.reward, "lines": said(talk.messages)}
        for title, talk in pair
    ]
    facts = {
        "name": run.name,
        "status": str(record.summary["status"]),
        "cause": cause_of(record),
        "damaged": record.damaged,
        "style": style("base.css", "page.css"),
        "tiles": tiles(record),
        "changes": [] if record.is_supervised else list(words.changes(record)),
        "charts": list(panels),
        **scores(record),
        "talks": talks,
        "phases": [
            (told, seconds(float(spent[name]))) for name, told in PHASES.items() if spent.get(name)
        ],
        "resumed_from": record.resumed_from,
        "folder": str(record.folder.absolute()),
        "places": [(place.name, place.holds) for place in words.places(record)],
        "seed": run.seed,
        "mode": str(run.mode),
    }
    return render(environment(), "report.html", facts)


def cause_of(record: Record) -> str:
    """Who ended the run early, and why; empty when nobody did."""
    cause = record.summary.get("cause")
    return f"{cause['actor']}: {cause['text']}" if cause else ""


def tiles(record: Record) -> list[Tile]:
    """Held-out success before and after, steps, and wall time once the run has ended."""
    found = []
    for name in ("sampled", "greedy"):
        old, new = (words.score(each, name) for each in (record.before, record.after))
        if old and new and old.success is not None and new.success is not None:
            now, was = f"{new.success:.0%}", f"before: {old.success:.0%}"
            found.append(Tile(f"held-out success, {name}", now, was))
    found.append(Tile("steps", f"{record.steps_done:,}", f"of {record.topology.run.steps:,}"))
    if record.summary:
        since = record.resumed_from
        note = f"resumed from step {since}" if since else ""
        found.append(Tile("wall time", seconds(float(record.summary["seconds"]["total"])), note))
    return found


def scores(record: Record) -> dict[str, Any]:
    """The table of held-out scores, as its template wants it."""
    return {
        "table": words.table(record),
        "num_prompts": words.num_prompts(record),
        "unscored": words.unscored(record),
    }


def said(messages: Iterable[ChatMessage]) -> list[Line]:
    """Messages in the order and the words of the page."""
    return [
        Line(each.who if each.who in WHO else "other", WHO.get(each.who, each.who), each.text)
        for each in reading(list(messages))
    ]
