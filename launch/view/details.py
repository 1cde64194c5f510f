"""The pages of one group and of one trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from milepost.actors.archive.layout import RecordDamaged
from milepost.actors.archive.query import Entry, Query
from milepost.actors.archive.reader import Archive, Refusal, Stored, Training
from milepost.launch.report.page import Line, Tile, said
from milepost.launch.view.certificate import TURNS_MAX, contracts, differences, facts_of, turns
from milepost.launch.view.links import Links
from milepost.launch.view.lists import Facts, NotThere
from milepost.launch.view.paging import page_links, paging
from milepost.launch.view.rows import (
    COLOURS,
    TOKENS_MAX,
    RowText,
    page_of,
    trainer_logprobs,
)
from milepost.launch.view.runs import OpenRun
from milepost.messages.trajectory import Trajectory

BESIDE_MAX: Final = 8
"""Members of a group on one page: each is read whole."""
LINES_MAX: Final = 40
"""Messages of one conversation on a page; with more, the first and the last ones."""
LINE_CHARACTERS_MAX: Final = 8_000
GLANCE_CHARACTERS_MAX: Final = 700
"""Of one message beside its siblings."""


class Member(Struct, frozen=True, kw_only=True):
    """One member of a group, beside its siblings."""

    entry: Entry
    lines: list[Line]
    problem: str = ""
    """Why it cannot be read."""


def group_page(run: OpenRun, name: str, number: int, links: Links) -> Facts:
    """The members of a group side by side.

    Raises:
        NotThere: the run has no such group.
    """
    archive = run.archive
    query, lost = (
        Query(group_id=name, is_lost=is_lost, order_by="trajectory_id") for is_lost in (False, True)
    )
    total, num_lost = (archive.count(each) if archive is not None else 0 for each in (query, lost))
    if archive is None or not total + num_lost:
        raise NotThere(f"no trajectory of group {name!r} was kept")
    if not total:
        # None took the place of them.
        query, total, num_lost = lost, num_lost, 0
    page = paging(number, BESIDE_MAX, total)
    entries = archive.select(query, limit=page.size, offset=page.offset)
    return {
        "group": name,
        "prompt": entries[0].prompt_id,
        "step": entries[0].step if entries[0].is_of_step else None,
        "tiles": _group_tiles(entries, total, num_lost),
        "page": page,
        "pages": page_links(page, lambda n: links.group(run.name, name, n)),
        "members": [_member(archive, entry) for entry in entries],
    }


def _group_tiles(entries: Sequence[Entry], total: int, num_lost: int) -> list[Tile]:
    rewards = [entry.reward for entry in entries]
    ages = [entry.staleness for entry in entries if entry.staleness is not None]
    return [
        Tile("members", f"{total:,}", f"and {num_lost:,} lost at a resume" if num_lost else ""),
        Tile("reward", f"{sum(rewards) / len(rewards):.3f}", "mean of those below"),
        Tile("staleness", f"{max(ages)}" if ages else "-", "versions, of the oldest"),
    ]


def _member(archive: Archive, entry: Entry) -> Member:
    try:
        stored = archive.read(entry.trajectory_id, entry.attempt)
    except RecordDamaged as error:
        # Its siblings are worth a look all the same.
        return Member(entry=entry, lines=[], problem=str(error))
    lines, _ = _lines(stored, 0, GLANCE_CHARACTERS_MAX)
    return Member(entry=entry, lines=lines)


def _lines(stored: Stored, row: int, characters_max: int) -> tuple[list[Line], int]:
    """The messages of one row, long ones cut and some left out; and how many there are."""
    conversation = stored.conversations[row]
    if conversation is None:
        return [], 0
    lines = said(conversation.messages)
    total, half = len(lines), LINES_MAX // 2
    if total > LINES_MAX:
        gap = Line("other", "", f"... {total - LINES_MAX} more ...")
        lines = [*lines[:half], gap, *lines[-half:]]
    return [line._replace(text=_cut(line.text, characters_max)) for line in lines], total


def _cut(text: str, characters_max: int) -> str:
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text):,} characters)"


class Opened(Struct, frozen=True, kw_only=True):
    """One row of a trajectory, read, before its tokens are spelled."""

    stored: Stored
    number: int
    """Of the row."""
    start: int
    """First token on the page."""

    @property
    def row(self) -> Trajectory:
        """It."""
        return self.stored.rows[self.number]

    @property
    def training(self) -> Training | None:
        """What the trainer made of it."""
        return self.stored.trainings[self.number]

    @property
    def refusal(self) -> Refusal | None:
        """What the trainer's door had against it, or against a sibling."""
        return self.stored.refusals[self.number]

    @property
    def end(self) -> int:
        """Behind the last token on the page."""
        return min(self.start + TOKENS_MAX, self.row.token_ids.shape[0])


def open_row(run: OpenRun, name: str, words: Mapping[str, str]) -> Opened:
    """Read one row, with the tokens that an address asks for.

    Raises:
        NotThere: no such trajectory, attempt or row.
        Unknown, RecordDamaged: as `Archive.read`.
    """
    archive = run.archive
    if archive is None:
        raise NotThere("this run has kept no trajectories")
    attempt = _number(words, "attempt")
    stored = archive.read(name, attempt)
    number = _number(words, "row") or 0
    if number >= len(stored.rows):
        raise NotThere(f"{name} has {len(stored.rows)} rows, numbered from 0, and no row {number}")
    length = stored.rows[number].token_ids.shape[0]
    start = min(_number(words, "from") or 0, max(0, length - 1)) // TOKENS_MAX * TOKENS_MAX
    return Opened(stored=stored, number=number, start=start)


def _number(words: Mapping[str, str], name: str) -> int | None:
    text = words.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def trajectory_page(
    run: OpenRun, opened: Opened, text: RowText, colour: str, links: Links
) -> Facts:
    """The reader: conversation, tokens, reward, certificate."""
    stored, row, training = opened.stored, opened.row, opened.training
    entry, certificate = stored.entry, row.certificate
    trainer = trainer_logprobs(row, training.logprobs if training else None)
    shown = page_of(row, trainer, text, opened.start, opened.end)
    lines, num_lines = _lines(stored, opened.number, LINE_CHARACTERS_MAX)
    page = paging(opened.start // TOKENS_MAX + 1, TOKENS_MAX, shown.length)

    def here(start: int) -> str:
        words = {"row": opened.number or "", "from": start or "", "colour": colour}
        return links.trajectory(run.name, entry.trajectory_id, entry.attempt, **words)

    return {
        "entry": entry,
        "row": row,
        "training": training,
        "tiles": _tiles(entry, training),
        "differences": differences(row, trainer),
        "refusal": opened.refusal,
        "contracts": contracts(training or opened.refusal),
        "certificate": facts_of(row),
        "turns": turns(row),
        "more_turns": max(0, len(row.turns) - TURNS_MAX),
        "mismatch": certificate.canonical_mismatch,
        "mismatch_at": text.mismatch,
        "mismatch_link": here(text.mismatch.first // TOKENS_MAX * TOKENS_MAX) + "#mismatch"
        if text.mismatch
        else "",
        "lines": lines,
        "num_lines": num_lines,
        "has_conversation": stored.conversations[opened.number] is not None,
        "shown": shown,
        "tokens_max": TOKENS_MAX,
        "why_not": text.why_not,
        "colour": colour if colour in COLOURS else "who",
        "colours": COLOURS,
        "page": page,
        "pages": page_links(page, lambda n: here((n - 1) * TOKENS_MAX)),
        "rows": len(stored.rows),
        "number": opened.number,
        "facts": sorted((name, f"{value:g}") for name, value in row.metrics.items()),
    }


def _tiles(entry: Entry, training: Training | None) -> list[Tile]:
    advantage = training.advantage if training else entry.advantage
    rest = entry.num_tokens - entry.num_sampled_tokens
    return [
        Tile("reward", f"{entry.reward:.3f}"),
        Tile("advantage", "-" if advantage is None else f"{advantage:+.3f}"),
        Tile("staleness", "-" if entry.staleness is None else f"{entry.staleness}", "versions"),
        Tile("tokens sampled", f"{entry.num_sampled_tokens:,}", f"{rest:,} others"),
        Tile("turns", f"{entry.num_turns:,}"),
    ]
