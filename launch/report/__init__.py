"""The report of a run that has ended: a picture, a page, and words for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from milepost.configs.run import Mode
from milepost.launch.accounts import account_of, token_lines
from milepost.launch.reading import read_flow
from milepost.launch.report import words
from milepost.launch.report.page import page
from milepost.launch.report.panels import panels
from milepost.launch.report.picture import Order, draw
from milepost.launch.report.record import Record, read_record
from milepost.launch.report.talk import pick, text_lines
from milepost.messages.evaluator import Transcript


def write_report(run_folder: Path) -> None:
    """Write curve.png and report.html into the folder of a run that has ended.

    Raises:
        FileNotFoundError: no run has ended in this folder.
        ConfigError: its topology.toml cannot be read.
        DrawingFailed: the picture could not be drawn; the page is there all the same.
    """
    record = read_record(run_folder)
    charts = panels(record)
    path = run_folder / "report.html"
    path.touch()  # so that the page can list itself
    try:
        if charts:
            png = str(run_folder.absolute() / "curve.png")
            draw(Order(title=words.headline(record), panels=charts, png=png))
    finally:
        # The page draws its charts itself: it is whole without the picture.
        path.write_text(page(record, charts, _pair(record)), encoding="utf-8")


def report_lines(run_folder: Path) -> Iterator[str]:
    """The report for a terminal: table, what changed, two conversations, where everything is.

    Raises:
        FileNotFoundError, ConfigError: as `write_report`.
    """
    record = read_record(run_folder)
    blocks = [
        [words.headline(record), *record.damaged],
        list(words.text_table(record)),
        list(words.changes(record)) if record.evaluations else [],
        list(_books(record)),
        *(list(text_lines(title, talk)) for title, talk in _pair(record)),
        [f"written to {run_folder}:", *(f"  {p.name:<18}{p.holds}" for p in words.places(record))],
    ]
    for number, block in enumerate(filter(None, blocks)):
        if number:
            yield ""
        yield from block


def _books(record: Record) -> Iterator[str]:
    """The waste statement, and how to read the run's flow."""
    account = account_of(record.summary.get("statistics", {}))
    if account is not None and account.tokens:
        yield from token_lines(account.tokens)
    steps = [step.metrics for step in record.steps]
    if reading := read_flow(steps, sync=record.topology.run.mode is Mode.SYNC):
        yield reading


def _pair(record: Record) -> list[tuple[str, Transcript]]:
    if record.before is None or record.after is None:
        return []
    talks = pick(record.transcripts, record.before.version, record.after.version)
    return [
        (f"{when} (version {talk.version})", talk)
        for when, talk in zip(("before", "after"), talks, strict=True)
        if talk is not None
    ]
