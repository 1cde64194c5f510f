"""Lines of coloured text that know their width in cells; no terminal is needed to make them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from rich.cells import cell_len, set_cell_size

ELLIPSIS: Final = "…"
SHARED_MAX: Final = 1024
"""Characters of one text that are ever looked at; a screen has no room for more."""


class Ink(StrEnum):
    """What a piece of text is; the screen says which colour that has."""

    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    FIRST = "first"
    """Success, and what the trainer does."""
    SECOND = "second"
    """Reward, and what rollout does."""
    FIRST_FILL = "first_fill"
    SECOND_FILL = "second_fill"
    TRACK = "track"
    """The empty part of a bar."""
    BAND = "band"
    """A stretch of time; neighbours alternate with `BAND_TOO`."""
    BAND_TOO = "band_too"


class Span(NamedTuple):
    """A piece of one colour."""

    text: str
    ink: Ink = Ink.PLAIN


class Line(NamedTuple):
    """Pieces from left to right; `lit` is the line that the cursor is on."""

    spans: tuple[Span, ...] = ()
    lit: bool = False

    @property
    def text(self) -> str:
        """Without colours."""
        return "".join(span.text for span in self.spans)

    @property
    def width(self) -> int:
        """Cells."""
        texts = [span.text for span in self.spans]
        # Most texts are of plain letters; asking how wide each is takes most of a frame's time.
        return sum([len(text) if text.isascii() else cell_len(text) for text in texts])


Piece: TypeAlias = Span | str


def line(*pieces: Piece, lit: bool = False) -> Line:
    """A line of these pieces; a bare text is plain."""
    spans = (Span(piece) if isinstance(piece, str) else piece for piece in pieces)
    return Line(tuple(span for span in spans if span.text), lit)


def clean(text: str) -> str:
    """What may be shown of a text from elsewhere: no control character reaches the terminal."""
    text = text[:SHARED_MAX]
    if text.isprintable():
        return text
    return "".join(
        " " if unicodedata.category(letter) in {"Cc", "Cf", "Zl", "Zp", "Cs"} else letter
        for letter in text
    )


def fit(one: Line, width: int) -> Line:
    """The line, exactly this wide: cut with an ellipsis, or filled up."""
    if width <= 0:
        return Line((), one.lit)
    total = one.width
    if total <= width:
        room = width - total
        return Line((*one.spans, Span(" " * room)), one.lit) if room else one
    spans: list[Span] = []
    left = width - 1
    for span in one.spans:
        cells = cell_len(span.text)
        if cells >= left:
            spans.append(Span(set_cell_size(span.text, left) + ELLIPSIS, span.ink))
            break
        spans.append(span)
        left -= cells
    return Line(tuple(spans), one.lit)


def block(lines: Iterable[Line], width: int, height: int) -> list[Line]:
    """Exactly `height` lines of exactly `width` cells."""
    found = [fit(each, width) for each in lines][: max(0, height)]
    return found + [fit(Line(), width)] * (height - len(found))


def beside(blocks: Sequence[tuple[Sequence[Line], int]], gap: int = 2) -> list[Line]:
    """Blocks side by side, each as wide as it says; the shorter ones end in empty lines."""
    height = max((len(lines) for lines, _ in blocks), default=0)
    columns = [block(lines, width, height) for lines, width in blocks]
    space = Span(" " * gap)
    rows = []
    for row in range(height):
        spans: list[Span] = []
        for number, column in enumerate(columns):
            if number:
                spans.append(space)
            spans.extend(column[row].spans)
        rows.append(Line(tuple(spans), any(column[row].lit for column in columns)))
    return rows


def rule(title: str, width: int, note: str = "") -> Line:
    """`── title ─────────── note ──`."""
    head = f"── {title} " if title else ""
    tail = f" {note} ──" if note else ""
    dashes = max(0, width - cell_len(head) - cell_len(tail))
    pieces = (Span(head[:3], Ink.TRACK), Span(head[3:], Ink.DIM), Span("─" * dashes, Ink.TRACK))
    ending = (Span(tail[:-3], Ink.DIM), Span(tail[-3:], Ink.TRACK)) if note else ()
    return fit(line(*pieces, *ending), width)


def wrap(text: str, width: int, ink: Ink = Ink.PLAIN) -> list[Line]:
    """A long text on several lines, broken at spaces where there are any."""
    lines: list[Line] = []
    row = ""
    for word in clean(text).split(" "):
        rest = word
        while cell_len(rest) > width > 0:
            if row:
                lines.append(line(Span(row, ink)))
                row = ""
            lines.append(line(Span(rest[: max(1, width // 2)], ink)))
            rest = rest[max(1, width // 2) :]
        grown = f"{row} {rest}" if row else rest
        if cell_len(grown) > width:
            lines.append(line(Span(row, ink)))
            row = rest
        else:
            row = grown
    return [*lines, line(Span(row, ink))] if row or not lines else lines


class Column(NamedTuple):
    """Of a table: head, width in cells, and whether it holds numbers."""

    head: str
    width: int
    right: bool = False


def cell(text: str, column: Column) -> str:
    """The text in the column's width."""
    if cell_len(text) > column.width:
        return set_cell_size(text, column.width - 1) + ELLIPSIS
    room = " " * (column.width - cell_len(text))
    return room + text if column.right else text + room


def row_of(columns: Sequence[Column], cells: Sequence[Piece], *, lit: bool = False) -> Line:
    """One line of a table; columns are two cells apart."""
    pieces: list[Piece] = []
    for number, (column, piece) in enumerate(zip(columns, cells, strict=True)):
        text, ink = piece if isinstance(piece, Span) else (piece, Ink.PLAIN)
        pieces.append(Span(("  " if number else "") + cell(text, column), ink))
    return line(*pieces, lit=lit)


def head_of(columns: Sequence[Column]) -> Line:
    """The line above a table."""
    return row_of(columns, [Span(column.head, Ink.DIM) for column in columns])
