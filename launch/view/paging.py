"""Long lists in pages: which one is shown, and where the others are."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Paging(Struct, frozen=True, kw_only=True):
    """One page of a list.

    Attributes:
        number: of the page, from 1.
        size: entries on a page.
        total: entries of the list.
    """

    number: int
    size: int
    total: int

    @property
    def offset(self) -> int:
        """Entries before this page."""
        return (self.number - 1) * self.size

    @property
    def first(self) -> int:
        """Number of its first entry, from 1; 0 when there is none."""
        return min(self.offset + 1, self.total)

    @property
    def last(self) -> int:
        """Number of its last entry."""
        return min(self.offset + self.size, self.total)

    @property
    def num_pages(self) -> int:
        """Pages of the list, at least one."""
        return max(1, -(-self.total // self.size))


class PageLink(Struct, frozen=True, kw_only=True):
    """One page worth a link."""

    number: int
    address: str
    is_here: bool
    after_gap: bool
    """Pages between it and the one before are left out."""


def page_links(page: Paging, address: Callable[[int], str]) -> list[PageLink]:
    """The first page, the last, and the neighbours of this one; empty when there is one only."""
    near = {1, page.num_pages, page.number - 1, page.number, page.number + 1}
    wanted = sorted(near & set(range(1, page.num_pages + 1)))
    if len(wanted) < 2:
        return []
    return [
        PageLink(
            number=number,
            address=address(number),
            is_here=number == page.number,
            after_gap=before is not None and number > before + 1,
        )
        for before, number in zip([None, *wanted], wanted, strict=False)
    ]


def page_number(text: str) -> int:
    """Of an address; the first page when it is no number, or longer than any."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1


def paging(number: int, size: int, total: int) -> Paging:
    """The page of this number, or the last one when there are not so many."""
    last = max(1, -(-total // size))
    return Paging(number=min(max(1, number), last), size=size, total=total)
