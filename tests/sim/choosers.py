"""Who decides what happens next: a seed, an odometer, or hypothesis.

A simulation asks its chooser one question: which of `count` moves? The same answers give the same
run, so a seed, a list of digits or a shrunk example is the whole story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Protocol


class Chooser(Protocol):
    def pick(self, count: int) -> int: ...

    def chance(self, probability: float) -> bool: ...


class Seeded:
    """Uniform choices from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pick(self, count: int) -> int:
        # Faster than randrange, and as uniform as a few options need.
        return int(self._random.random() * count)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability


class SeenBefore(Exception):
    """This state was reached in another order: all that can follow from it was tried."""


class Odometer:
    """Enumerates every sequence of choices, like the digits of a counter whose bases vary.

    Each pass replays a prefix and then takes the first option everywhere; `advance` moves the last
    digit that has options left. With a `fingerprint` of the state, a state that was met before is
    not followed again: orders that lead to the same place are the same from there on. Faults never
    happen by chance here.
    """

    def __init__(self) -> None:
        self._digits: list[int] = []
        self._bases: list[int] = []
        self._position = 0
        self._seen: set[str] = set()
        self.fingerprint: Callable[[], str] | None = None

    def pick(self, count: int) -> int:
        if count == 1:
            return 0
        if self._position == len(self._digits):
            if self.fingerprint is not None:
                state = self.fingerprint()
                if state in self._seen:
                    raise SeenBefore
                self._seen.add(state)
            self._digits.append(0)
            self._bases.append(count)
        assert self._bases[self._position] == count, "the simulation is not deterministic"
        digit = self._digits[self._position]
        self._position += 1
        return digit

    def chance(self, probability: float) -> bool:
        return probability >= 1.0

    def advance(self) -> bool:
        """The next sequence; False when every one was tried."""
        self._position = 0
        while self._digits:
            if self._digits[-1] + 1 < self._bases[-1]:
                self._digits[-1] += 1
                return True
            self._digits.pop()
            self._bases.pop()
        return False


class Drawn:
    """Choices drawn by hypothesis, which shrinks them to the shortest and plainest failing story.

    The first `length` choices are drawn; after that always the first option, so that a run ends.
    """

    def __init__(self, draw: Callable[[int], int], length: int) -> None:
        self._draw = draw
        self._left = length

    def pick(self, count: int) -> int:
        if count == 1 or self._left == 0:
            return 0
        self._left -= 1
        return self._draw(count)

    def chance(self, probability: float) -> bool:
        if probability <= 0.0 or self._left == 0:
            return False
        # Shrinks towards "no fault": a rare event is the largest of many equal options.
        return self.pick(max(2, round(1 / probability))) == max(1, round(1 / probability) - 1)


def every_order(run: Callable[[Odometer], object], limit: int) -> Iterator[int]:
    """Run once for every sequence of choices, at most `limit`; yields the number so far."""
    odometer = Odometer()
    for count in range(1, limit + 1):
        with suppress(SeenBefore):
            run(odometer)
        yield count
        if not odometer.advance():
            return
    raise AssertionError(f"more than {limit} orders: make the case smaller")
