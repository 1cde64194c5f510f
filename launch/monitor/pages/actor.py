"""The actors: all of them in a list, and one with everything that it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from milepost.launch.monitor.actors import ActorRow
from milepost.launch.monitor.lines import Ink, Line, Span, clean, line, rule, wrap
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.queue import queue_table
from milepost.launch.monitor.pages.tables import actor_table
from milepost.launch.monitor.pages.words import event_line, number, short, state_ink
from milepost.launch.monitor.ui import Place, cursor_of, names_on

NAME: Final = 22
LOG_LINES: Final = 40
VALUE_CHARACTERS_MAX: Final = 400


def actors(model: Model, place: Place) -> list[Line]:
    """All of them."""
    cursor = cursor_of(place, names_on(place.page, model))
    return actor_table(model.actors, cursor, place.width, place.body_lines)


def actor(model: Model, place: Place) -> list[Line]:
    """One of them: state, queues, numbers, events, the end of its log."""
    row = model.actor(place.opened)
    if row is None:
        return [line(Span(f"no actor {clean(place.opened)} any more", Ink.WARN))]
    width = place.width
    lines = list(_state(row, width))
    ours = [
        q for q in model.queues if place.opened in q.name.replace("inbox of ", "").split(" -> ")
    ]
    if ours:
        lines += [rule("queues", width), *queue_table(ours, -1, width, len(ours) + 1)]
    lines += [rule("numbers", width), *_numbers(row.statistics, width)]
    if row.facts:
        lines += [rule("facts", width), *_numbers(row.facts, width)]
    told = [event for event in model.events if event.source == row.name]
    if told:
        lines += [rule("events", width), *(event_line(event) for event in told[-8:])]
    log = model.log
    if log is not None and log.actor == row.name:
        lines.append(rule("log", width, f"milepost tail {row.name}"))
        lines += [line(Span(clean(each), Ink.DIM)) for each in log.lines[-LOG_LINES:]]
        lines += [] if log.lines else [line(Span("nothing was printed", Ink.DIM))]
    return lines


def _state(row: ActorRow, width: int) -> Iterator[Line]:
    finished = ", its work is finished" if row.finished else ""
    yield line(
        Span(f"{row.name}  ", Ink.STRONG),
        Span(row.state, state_ink(row.state)),
        Span(f" for {short(row.state_s)}{finished}"),
        Span(f"   pid {row.pid or '-'}   restarted {row.restarts} times", Ink.DIM),
        Span(f"   heard {short(row.heard_s)} ago", Ink.DIM),
    )
    yield from wrap(row.doing or "says nothing yet", width)
    box = "-" if row.depth is None else f"{row.depth} of {row.depth_max}"
    tight = row.tight
    credit = f"{tight.free} of {tight.window} to {tight.peer}" if tight else "-"
    yield line(
        Span("mailbox ", Ink.DIM),
        Span(box),
        Span("   blocked senders ", Ink.DIM),
        Span(str(row.blocked), Ink.BAD if row.blocked else Ink.PLAIN),
        Span("   least credit ", Ink.DIM),
        Span(credit),
        Span("   oldest ", Ink.DIM),
        Span(short(row.oldest_s)),
    )
    yield line(
        Span("memory ", Ink.DIM),
        Span(f"{number(row.rss_mib)} MiB"),
        Span("   processor ", Ink.DIM),
        Span(f"{number(row.cpu, '.2f')} of a core"),
        Span("   loop delay p99 ", Ink.DIM),
        Span(f"{number(row.loop_ms, '.1f')} ms"),
    )


def _numbers(values: Mapping[str, Any], width: int) -> Iterator[Line]:
    """Name and value, two in a line where there is room."""
    flat = list(_flat(values, ""))
    half = width // 2 - 1
    short_ones = [(n, v) for n, v in flat if len(n) < NAME and len(v) < half - NAME]
    long_ones = [(n, v) for n, v in flat if (n, v) not in short_ones]
    rows = (len(short_ones) + 1) // 2
    for place in range(rows):
        pieces: list[Span] = []
        for name, value in short_ones[place::rows][:2]:
            pieces += [Span(f"{name:<{NAME}}", Ink.DIM), Span(f"{value:<{max(1, half - NAME)}}")]
        yield line(*pieces)
    for name, value in long_ones:
        yield line(Span(f"{name:<{NAME}} ", Ink.DIM), Span(value))


def _flat(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        else:
            yield clean(path), clean(_word(value))[:VALUE_CHARACTERS_MAX]


def _word(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"
        case _:
            return str(value) or "-"
