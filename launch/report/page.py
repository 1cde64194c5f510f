"""report.html: one file that opens anywhere, on a phone, too."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from milepost.launch.display.words import seconds
from milepost.launch.report import words
from milepost.launch.report.record import Record
from milepost.launch.report.talk import Said, reading
from milepost.messages.evaluator import Transcript

PHASES: Final = {
    "starting": "start, until all actors were ready",
    "running": "evaluation before, training, evaluation after",
    "draining": "draining",
    "stopping": "stopping",
}
WHO: Final = {"user": "asked", "model": "answers", "call": "calls", "tool": "is told"}


def page(record: Record, svgs: Iterable[str], pair: Iterable[tuple[str, Transcript]]) -> str:
    """The whole page.

    Args:
        record: the run.
        svgs: its charts.
        pair: titled conversations to show.
    """
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    title = f"{record.topology.run.name} - milepost"
    parts = [
        _header(record),
        "" if record.is_supervised else _paragraphs(words.changes(record)),
        _charts(svgs),
        _table(record),
        _talks(pair),
        _facts(record),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        f"{''.join(part for part in parts if part)}</main></body></html>\n"
    )


def _header(record: Record) -> str:
    status = str(record.summary["status"])
    cause = record.summary.get("cause")
    tiles = [_tile("steps", str(record.steps_done), "")]
    tiles.append(_tile("wall time", seconds(float(record.summary["seconds"]["total"])), ""))
    before, after = record.before, record.after
    for name in ("sampled", "greedy"):
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old and new and old.success is not None and new.success is not None:
            now, was = f"{new.success:.0%}", f"{old.success:.0%}"
            tiles.insert(-2, _tile(f"held-out success, {name}", now, f"before: {was}"))
    why = ""
    if cause:
        why = f'<p class="cause">{html.escape(cause["actor"] + ": " + cause["text"])}</p>'
    return (
        f'<header><p class="brand">milepost run</p><h1>{html.escape(record.topology.run.name)} '
        f'<span class="{html.escape(status)}">{html.escape(status)}</span></h1>'
        f"{why}</header>"
        f'<section class="tiles">{"".join(tiles)}</section>'
    )


def _tile(name: str, value: str, note: str) -> str:
    below = f"<small>{html.escape(note)}</small>" if note else "<small>&nbsp;</small>"
    return f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span>{below}</div>"


def _paragraphs(sentences: Iterable[str]) -> str:
    lines = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    return f"<section><h2>What changed</h2>{lines}</section>"


def _charts(svgs: Iterable[str]) -> str:
    figures = "".join(f"<figure>{svg}</figure>" for svg in svgs)
    return (
        f'<section><h2>Curves</h2><div class="charts">{figures}</div></section>' if figures else ""
    )


def _table(record: Record) -> str:
    rows = "".join(
        f'<tr{" class=part" if row.indented else ""}><th scope="row">{html.escape(row.name)}</th>'
        f"<td>{words.number(row.before)}</td><td>{words.number(row.after)}</td></tr>"
        for row in words.table(record)
    )
    if not rows:
        return ""
    missing = words.unscored(record)
    note = f"<p>Without a score, and in no figure: {html.escape(missing)}.</p>" if missing else ""
    return (
        f"<section><h2>Before and after</h2><p>{words.num_prompts(record)} held-out prompts; "
        "nothing was ever trained on them.</p><table><thead><tr><td></td><th>before</th>"
        f"<th>after</th></tr></thead><tbody>{rows}</tbody></table>{note}</section>"
    )


def _talks(pair: Iterable[tuple[str, Transcript]]) -> str:
    talks = "".join(
        f"<article><h3>{html.escape(title)} <span>reward {talk.reward:.2f}</span></h3>"
        f"{''.join(map(_said, reading(talk.messages)))}</article>"
        for title, talk in pair
    )
    heading = "<h2>One held-out prompt, before and after</h2>"
    return f'<section>{heading}<div class="talks">{talks}</div></section>' if talks else ""


def _said(said: Said) -> str:
    kind, who = html.escape(said.who), html.escape(WHO.get(said.who, said.who))
    return f'<p class="said {kind}"><i>{who}</i> {html.escape(said.text)}</p>'


def _facts(record: Record) -> str:
    spent: Mapping[str, Any] = record.summary["seconds"]
    phases = [(PHASES[name], seconds(float(spent[name]))) for name in PHASES if spent.get(name)]
    files_there = [(place.name, place.holds) for place in words.places(record)]
    run = record.topology.run
    return (
        f"<section><h2>Wall time</h2>{_list(phases)}</section>"
        f"<section><h2>Where everything is</h2><p><code>{html.escape(_shown(record.folder))}</code>"
        f"</p>{_list(files_there)}<p>Seed {run.seed}, {html.escape(str(run.mode))} mode.</p>"
        "</section>"
    )


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{html.escape(a)}</dt><dd>{html.escape(b)}</dd>" for a, b in pairs)
    return f"<dl>{items}</dl>"


def _shown(folder: Path) -> str:
    return str(folder.absolute())
