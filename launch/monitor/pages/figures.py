"""One-line figures of a run: speed, versions, the queue, the waste statement, the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from milepost.launch.accounts import USED
from milepost.launch.monitor.drawings import bar, curve, shares, time_line
from milepost.launch.monitor.lines import Ink, Line, Span, clean, line
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.pages.words import count, number

LABEL: Final = 10
BAND_CELLS: Final = 6
"""Width that a version should have on the time line, so that its number can be read."""
LEAST_S, MOST_S = 20.0, 86_400.0
HELD: Final = frozenset({"held", "under_way"})
SHARE_CELLS: Final = 40
QUEUE_CELLS: Final = 67
TOKENS_CELLS: Final = 62
"""What the words behind a bar may take; the bar gets what is left."""


def label(text: str) -> Span:
    """What stands at the left of a line."""
    return Span(f"{text:<{LABEL - 1}} ", Ink.DIM)


def speed(model: Model, width: int) -> Line:
    """Tokens a second of both sides, with their history."""
    half = (width - LABEL - 2) // 2
    spans: list[Span] = [label("tokens/s")]
    sides = (("rollout", model.progress.sampled_per_s), ("trainer", model.progress.trained_per_s))
    for place, (name, now) in enumerate(sides):
        found = model.curves[name]
        value = now if now is not None and model.summary is None else found.last
        text = f"{name} {number(value, ',.0f'):>6} "
        ink = Ink.SECOND if name == "rollout" else Ink.FIRST
        drawn = curve(found.values, max(0, half - len(text)), 1, ink)
        spans += [Span(text), *drawn[0].spans]
        spans.append(Span("  " if place == 0 else ""))
    return line(*spans)


def engines(model: Model, width: int, height: int) -> list[Line]:
    """The version that each engine served when; the last line tells of those without room."""
    names = sorted(model.served, key=_by_number)
    if not names:
        return [_published(model, width)]
    shown = names if len(names) <= height else names[: height - 1]
    lines = [_engine(model, name, width) for name in shown]
    if len(shown) < len(names):
        versions = [model.served[name][-1][1] for name in names[len(shown) :]]
        text = f"{len(versions)} more engines serve {min(versions)} to {max(versions)}"
        lines.append(line(label("engines"), Span(text)))
    return lines


def _published(model: Model, width: int) -> Line:
    if not model.published:
        return line(label("versions"), Span("no weights were published yet", Ink.DIM))
    return _strip(model, "versions", list(model.published), width)


def _engine(model: Model, name: str, width: int) -> Line:
    (at_s, version), *later = model.served[name]
    # What was published before this monitor came: every engine that samples for training served it.
    published = model.published if name.startswith("engine-") else ()
    before = [change for change in published if change[1] < version and change[0] < at_s]
    begun = next((when_s for when_s, each in published if each == version), at_s)
    return _strip(model, name, [*before, (min(begun, at_s), version), *later], width)


def _strip(model: Model, name: str, changes: Sequence[tuple[float, int]], width: int) -> Line:
    version = changes[-1][1]
    behind = max(0, model.step - version)
    last = f" v{version}" + (f", trainer {behind} ahead" if behind else "")
    room = max(0, width - max(LABEL, len(name) + 1) - 22)
    now_s = max(model.wall_s, changes[-1][0])
    since_s = now_s - _span_s(changes, now_s, room)
    kept = [change for change in changes if change[0] >= since_s]
    earlier = [version for at_s, version in changes if at_s < since_s]
    if earlier:
        kept.insert(0, (since_s, earlier[-1]))
    ink = Ink.WARN if behind > 4 else Ink.PLAIN
    return line(label(name), *time_line(kept, since_s, now_s, room), Span(last, ink))


def _span_s(changes: Sequence[tuple[float, int]], now_s: float, room: int) -> float:
    """How long a time the line shows: as many versions as can be told apart."""
    bands = max(1, room // BAND_CELLS)
    first_s = changes[max(0, len(changes) - bands)][0]
    return min(MOST_S, max(LEAST_S, now_s - first_s))


def queue(model: Model, width: int) -> Line:
    """The groups that wait to be trained: how many, how old, who waits for whom."""
    found = model.buffer
    if "queue" not in found:
        return line(label("queue"), Span("no buffer has said anything yet", Ink.DIM))
    depth, most = int(found["queue"]), max(1, int(found["queue_max"]))
    age = int(found.get("queue_s_old_max", 0))
    words = [f"{depth}/{most} groups, {age} version{'s' if age != 1 else ''} old"]
    words.append(f"{found.get('assembling', 0)} assembling")
    rollout = model.actor("rollout")
    if rollout is not None and "credits" in rollout.statistics:
        words.append(f"credit {rollout.statistics['credits']}")
    if found.get("ranks_waiting"):
        words.append("trainer waits")
    cells = _bar_cells(width, QUEUE_CELLS)
    return line(label("queue"), *bar(depth / most, cells), Span("  " + ", ".join(words)))


def _bar_cells(width: int, words: int) -> int:
    return max(4, min(SHARE_CELLS, width - LABEL - words))


def tokens(model: Model, width: int) -> Line:
    """The waste statement: what became of every sampled token."""
    account = model.account
    if account is None or not account.tokens:
        return line(label("tokens"), Span("nothing was sampled yet", Ink.DIM))
    total = sum(account.tokens.values())
    trained = account.tokens.get("trained", 0)
    other = sum(each for name, each in account.tokens.items() if name in USED) - trained
    held = sum(account.tokens.get(name, 0) for name in HELD)
    wasted = {
        name: each for name, each in account.tokens.items() if name not in USED and name not in HELD
    }
    lost = sum(wasted.values())
    parts = [(trained, Ink.FIRST), (other, Ink.SECOND), (held, Ink.DIM), (lost, Ink.BAD)]
    words = [
        Span(f"  {trained / total:.0%} trained", Ink.FIRST),
        Span(f"  {other / total:.0%} evaluated", Ink.SECOND),
        Span(f"  {held / total:.0%} held", Ink.DIM),
        Span(f"  {lost / total:.1%} wasted", Ink.BAD if lost else Ink.PLAIN),
    ]
    if wasted:
        worst = max(wasted, key=lambda name: wasted[name])
        words.append(Span(f": {clean(worst)} {wasted[worst] / total:.1%}", Ink.DIM))
    ending = Span(f"  of {count(total)}", Ink.DIM)
    return line(label("tokens"), *shares(parts, _bar_cells(width, TOKENS_CELLS)), *words, ending)


def books(model: Model, width: int) -> Line:
    """The ledger: every issued group is somewhere."""
    del width
    account = model.account
    if account is None:
        return line(label("groups"), Span("nothing was issued yet", Ink.DIM))
    dropped = sum(account.dropped.values())
    sums = (
        f"{account.issued:,} issued = {account.trained:,} trained + {dropped:,} dropped"
        f" + {account.open:,} sampling + {account.stored:,} stored"
    )
    if account.balance:
        verdict = Span(f"  OFF BY {account.balance:+}", Ink.BAD)
    else:
        verdict = Span("  balances", Ink.GOOD)
    return line(label("groups"), Span(sums), verdict)


def _by_number(name: str) -> tuple[str, int]:
    kind, _, index = name.rpartition("-")
    return (kind, int(index)) if index.isdecimal() else (name, 0)
