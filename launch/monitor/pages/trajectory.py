"""The trajectories: in flight and just ended in a list, and the life of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from milepost.launch.monitor.drawings import time_line
from milepost.launch.monitor.lines import (
    Column,
    Ink,
    Line,
    Span,
    clean,
    head_of,
    line,
    row_of,
    rule,
    wrap,
)
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.words import clock, short
from milepost.launch.monitor.trajectories import Finished, Flight
from milepost.launch.monitor.ui import Place, cursor_of, window

TOKENS_SHOWN: Final = 48
COLUMNS: Final = (
    Column("trajectory", 16),
    Column("where", 12),
    Column("status", 11),
    Column("age", 8, right=True),
    Column("reward", 7, right=True),
    Column("tokens", 6, right=True),
    Column("turns", 5, right=True),
)
NATURAL: Final = {"completed": Ink.GOOD, "truncated": Ink.WARN}


def trajectories(model: Model, place: Place) -> list[Line]:
    """Those in flight, the oldest first; then those that ended, the newest first."""
    names = model.trajectories.known()
    if not names:
        text = (
            "nothing is in flight, and nothing has ended since this page was opened; "
            f"`milepost view {model.about.folder}` has those that were kept"
        )
        return wrap(text, place.width, Ink.DIM)
    cursor = cursor_of(place, names)
    used = sum(column.width + 2 for column in COLUMNS)
    columns = (*COLUMNS, Column("versions", max(8, place.width - used)))
    lines = [head_of(columns)]
    for number in window(len(names), cursor, place.body_lines - 1):
        flight, ended = model.trajectories.find(names[number])
        cells = _cells(model, names[number], flight, ended)
        lines.append(row_of(columns, cells, lit=number == cursor))
    return lines


def _cells(
    model: Model, name: str, flight: Flight | None, ended: Finished | None
) -> list[Span | str]:
    if flight is not None:
        age = short(max(0.0, model.clock_s - flight.since_s))
        stage = Span(clean(flight.stage), Ink.SECOND)
        return [Span(clean(name), Ink.STRONG), clean(flight.owner), stage, age, "", "", "", ""]
    assert ended is not None, name
    versions = ended.versions
    spread = "" if versions is None else "-".join(str(each) for each in dict.fromkeys(versions))
    return [
        clean(name),
        clean(ended.session),
        Span(clean(ended.status), NATURAL.get(ended.status, Ink.BAD)),
        clock(ended.at_ns / 1e9),
        f"{ended.reward:.3f}",
        str(ended.num_tokens),
        str(len(ended.turns)),
        Span(spread, Ink.DIM),
    ]


def trajectory(model: Model, place: Place) -> list[Line]:
    """One of them: verdict, turns, versions, certificate, what was said, its messages."""
    flight, ended = model.trajectories.find(place.opened)
    width = place.width
    lines = [line(Span(clean(place.opened), Ink.STRONG), *_summary(model, flight, ended))]
    if ended is not None:
        words = [f"{name} {value:.4g}" for name, value in sorted(ended.metrics.items())]
        lines += wrap("   ".join(words), width, Ink.DIM) if words else []
        lines += [rule("turns", width), *_turns(ended)]
        lines += [rule("weight versions of its tokens", width), _versions(ended, width)]
        lines += [rule("certificate", width), *_certificate(ended, width)]
        if ended.token_ids:
            shown = " ".join(str(token) for token in ended.token_ids[:TOKENS_SHOWN])
            more = " ..." if ended.num_tokens > TOKENS_SHOWN else ""
            lines += [rule("tokens", width), *wrap(shown + more, width, Ink.DIM)]
    talk = model.trajectories.talk() if model.trajectories.followed == place.opened else []
    if talk:
        lines.append(rule("conversation, as of its last turn that was copied", width))
        for role, text in talk:
            first, *rest = wrap(text, max(1, width - 11))
            lines.append(line(Span(f"{clean(role):<10} ", Ink.SECOND), *first.spans))
            lines += [line(Span(" " * 11), *each.spans) for each in rest]
    lines.append(rule("messages since this page was opened", width))
    lines += list(_life(model, place.opened))
    told = f"its whole life: milepost trace {model.about.folder} {clean(place.opened)}"
    return [*lines, line(Span(told, Ink.DIM))]


def _summary(model: Model, flight: Flight | None, ended: Finished | None) -> Iterator[Span]:
    if flight is not None:
        age = short(max(0.0, model.clock_s - flight.since_s))
        yield Span(f"  {clean(flight.stage)} at {clean(flight.owner)} for {age}", Ink.SECOND)
    if ended is not None:
        yield Span(f"  {clean(ended.status)}", NATURAL.get(ended.status, Ink.BAD))
        yield Span(f"  reward {ended.reward:.4g}", Ink.STRONG)
        yield Span(f"  {ended.num_sampled} of {ended.num_tokens} tokens sampled")
        if ended.num_rows > 1:
            yield Span(f", first of {ended.num_rows} rows")
    if flight is None and ended is None:
        yield Span("  neither in flight among the oldest, nor seen to end", Ink.DIM)


def _turns(ended: Finished) -> Iterator[Line]:
    columns = (
        Column("turn", 4, right=True),
        Column("prompt", 7, right=True),
        Column("reply", 6, right=True),
        Column("ended by", 12),
        Column("engine", 10),
        Column("trained", 7),
        Column("hash of its prefix", 32),
    )
    yield head_of(columns)
    start = 0
    for number, turn in enumerate(ended.turns):
        prompt_end, end = int(turn.get("prompt_end", 0)), int(turn.get("end", 0))
        cells = [
            str(number + 1),
            str(prompt_end - start),
            str(end - prompt_end),
            clean(str(turn.get("finish_reason", ""))),
            clean(str(turn.get("engine", ""))),
            "yes" if turn.get("trained", True) else "no",
            Span(clean(str(turn.get("prefix_hash", ""))), Ink.DIM),
        ]
        yield row_of(columns, cells)
        start = end


def _versions(ended: Finished, width: int) -> Line:
    """Each span of sampled tokens over the whole row; what was not sampled stays empty."""
    scale = width / max(1, ended.num_tokens)
    spans: list[Span] = []
    at = 0
    for start, end, version in ended.spans:
        first, last = round(start * scale), max(round(end * scale), round(start * scale) + 1)
        spans.append(Span("·" * max(0, first - at), Ink.TRACK))
        spans += time_line([(first, version)], first, last, last - max(first, at))
        at = last
    spans.append(Span("·" * max(0, width - at), Ink.TRACK))
    return line(*spans)


def _certificate(ended: Finished, width: int) -> Iterator[Line]:
    for name, value in ended.certificate.items():
        if value not in (None, "", [], ()):
            text = f"{name} {value}"
            yield from wrap(text, width)


def _life(model: Model, name: str) -> Iterator[Line]:
    if model.trajectories.followed != name or not model.trajectories.life:
        yield line(Span("none yet", Ink.DIM))
        return
    for one in model.trajectories.life:
        facts = one.envelope
        millis = one.at_ns // 1_000_000 % 1000
        yield line(
            Span(f"{clock(one.at_ns / 1e9)}.{millis:03}  ", Ink.DIM),
            Span(f"{clean(str(facts['source']))} -> {clean(str(facts['to']))}  "),
            Span(f"{facts['kind']} ", Ink.DIM),
            Span(clean(str(facts["type"])), Ink.SECOND),
            Span(f"  {facts['bytes']} bytes", Ink.DIM),
        )
    if dropped := model.trajectories.num_dropped:
        yield line(Span(f"{dropped} messages came too fast to be copied", Ink.WARN))
