"""The events: all that are kept in a list, the newest first, and one in full. And the help page."""

from __future__ import annotations

import msgspec

from milepost.launch.monitor.lines import Ink, Line, Span, clean, line, rule, wrap
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.words import TROUBLE, clock, event_line
from milepost.launch.monitor.ui import Place, cursor_of, names_on, window

HELP = """
Everything is read only: a monitor copies what the run says, and the run never waits for it.

 up down        choose            enter   open what is chosen       escape  go back
 o overview     a actors          u queues          t trajectories          e events
 tab            the next page     page up, page down, home, end     move further
 q              leave; the run goes on

Lamps: the four equalities between engine and trainer.
 ● green   everything that was measured held
 ● yellow  it holds now and did not always; or groups are refused for their age; or a setting
           lets older ones be trained, or sets no limit
 ● red     it was broken within the last 20 steps
 ○ grey    nothing was measured, so nothing is claimed

Actors: box is what lies in the mailbox; credit is how many messages may still be sent on the
fullest link before one must be taken; oldest is the age of whatever waits longest, a question
without an answer included; loop ms is how late the event loop wakes up (99th percentile of the
last minute). A star behind the state: its work is finished.

Versions: a band for each weight version that an engine served, up to now at the right end.
Tokens: each sampled one is in exactly one account; `milepost account` has the whole table.
"""


def events(model: Model, place: Place) -> list[Line]:
    """All that are kept."""
    if not model.events:
        return [line(Span("nothing has happened yet", Ink.DIM))]
    names = names_on(place.page, model)
    cursor = cursor_of(place, names)
    newest_first = list(reversed(model.events))
    shown = window(len(newest_first), cursor, place.body_lines)
    return [event_line(newest_first[number], lit=number == cursor) for number in shown]


def event(model: Model, place: Place) -> list[Line]:
    """One of them, with all its values."""
    found = next((each for each in model.events if str(each.number) == place.opened), None)
    if found is None:
        return [line(Span("this event is too old to be kept", Ink.WARN))]
    head = line(
        Span(f"{clock(found.wall_s)}  ", Ink.DIM),
        Span(f"{clean(found.source)} "),
        Span(clean(found.kind), TROUBLE.get(found.kind, Ink.DIM)),
    )
    lines = [head, *wrap(found.text, place.width)]
    if found.values:
        text = msgspec.json.format(msgspec.json.encode(found.values), indent=2).decode()
        lines.append(rule("values", place.width))
        lines += [line(Span(clean(each), Ink.DIM)) for each in text.splitlines()]
    return lines


def helping(model: Model, place: Place) -> list[Line]:
    """What the keys and the figures mean."""
    del model
    return [fitted for text in HELP.strip("\n").splitlines() for fitted in _help(text, place.width)]


def _help(text: str, width: int) -> list[Line]:
    if text.startswith(" ") or len(text) <= width:
        return [line(text)]
    return wrap(text, width)
