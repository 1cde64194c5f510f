"""Which versions are due to be measured, and what becomes of one that is due too early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.evaluator.records import Past
from milepost.actors.evaluator.settings import EvaluatorSettings

OVERFLOW: Final = "overflow"
"""An older version was still being measured (policy `skip`)."""
NOBODY: Final = "nobody"
"""No agent was there to play."""
PASSED: Final = "passed"
"""A newer version was due, or served, before this one could be taken."""
FAILED: Final = "failed"
"""It was measured, and no episode had an outcome."""
INTERRUPTED: Final = "interrupted"
"""The evaluator died while it was due, or was not there when it was published; engines serve a
newer one by now."""
TIMES_KEPT: Final = 64


@dataclass(slots=True)
class Schedule:
    """Published versions, and at most one that waits to be measured.

    Attributes:
        newest: published last; None before the first.
        final: the newest version is the last one.
        due: the version that waits; None when none does.
        asked: the version that engines were asked to hold; None when none was.
        skipped: versions that get no score, with the reason, not told yet.
    """

    settings: EvaluatorSettings
    past: Past
    """What former lives left; read when the first version is heard of."""
    newest: int | None = None
    final: bool = False
    due: int | None = None
    asked: int | None = None
    skipped: list[tuple[int, str]] = field(default_factory=list)
    _times: dict[int, float] = field(default_factory=dict)

    def published(self, version: int, *, final: bool, measured: int | None, now_s: float) -> bool:
        """A version was published; False when nothing is new about that.

        Args:
            version: its number.
            final: no further one will come; said of a version known already when training ended
                early.
            measured: the version that is being measured, if any is.
            now_s: now.
        """
        previous, was_due = self.newest, self.past.newest
        if previous is not None and version <= previous and not self._is_end(version, final=final):
            return False
        if previous is None or version > previous:
            self._times[version] = now_s
            while len(self._times) > TIMES_KEPT:
                del self._times[next(iter(self._times))]
        self.newest, self.final = version, final
        # It may have its score, or be about to, when it turns out to be the last one.
        is_done = version == measured or self.past.is_whole(version)
        is_last = final and self.settings.at_end
        if previous is None:
            self._look_back(version)
            previous = was_due
        if not is_done and (is_last or self._is_regular(version, previous)):
            is_busy = measured is not None or self.asked is not None
            self._demand(version, is_busy=is_busy, is_forced=is_last)
        return True

    def _is_end(self, version: int, *, final: bool) -> bool:
        return final and not self.final and version == self.newest

    def _is_regular(self, version: int, previous: int | None) -> bool:
        """Whether it is the first of its turn that this evaluator, in any life, has heard of."""
        if previous is None and version == 0:
            return self.settings.at_start
        every = self.settings.every_versions
        return bool(every) and version // every > (previous or 0) // every

    def _look_back(self, version: int) -> None:
        """What was due in former lives: what is served again is due again, the rest is named."""
        left = set(self.past.due)
        if version in left:
            left.remove(version)
            self._wait(version)
        self.skipped += [(each, INTERRUPTED) for each in sorted(left | self._unheard(version))]

    def _unheard(self, version: int) -> set[int]:
        """Versions that were due, and published while nobody was there to hear of them."""
        last, step = self.past.newest, self.settings.publish_every
        first = 0 if last is None else last + 1
        published = {*range(-(-first // step) * step, version, step), self.settings.resumed_version}
        found: set[int] = set()
        for each in sorted(published):
            if first <= each < version:
                if self._is_regular(each, last):
                    found.add(each)
                last = each
        return found

    def _demand(self, version: int, *, is_busy: bool, is_forced: bool) -> None:
        can_overflow = self.settings.has_fleet
        if can_overflow and is_busy and self.settings.overflow == "skip" and not is_forced:
            self.skipped.append((version, OVERFLOW))
            return
        self._wait(version)

    def _wait(self, version: int) -> None:
        if self.due is not None and self.due != version:
            self.skipped.append((self.due, PASSED))
        self.due = version

    def is_owed(self, version: int) -> bool:
        """Whether this is the last version, whose score the topology asks for."""
        return self.final and self.settings.at_end and version == self.newest

    def out_of_turn(self) -> None:
        """Somebody wants the newest version measured."""
        if self.newest is not None:
            self._wait(self.newest)

    def ask(self) -> None:
        """Engines are asked to hold the version that is due."""
        assert self.asked is None, self.asked
        self.asked, self.due = self.due, None

    def ask_again(self) -> None:
        """They did not answer: it is due again, unless a newer one is."""
        asked, self.asked = self.asked, None
        if self.due is None:
            self.due = asked
        elif asked is not None:
            self.skipped.append((asked, PASSED))

    def taken(self, version: int) -> None:
        """Engines serve `version` and hold it: it is measured in the place of what was asked for.

        What was due up to it has been overtaken by it.
        """
        asked, self.asked = self.asked, None
        for each in {asked, self.due if (self.due or 0) <= version else None} - {None, version}:
            assert each is not None
            self.skipped.append((each, PASSED))
        if self.due is not None and self.due <= version:
            self.due = None

    def give_up(self, reason: str) -> None:
        """What engines were asked for cannot be measured."""
        if self.asked is not None:
            self.skipped.append((self.asked, reason))
        self.asked = None

    def drop_due(self, reason: str) -> None:
        """What is due cannot be measured."""
        if self.due is not None:
            self.skipped.append((self.due, reason))
        self.due = None

    def delay_s(self, version: int, now_s: float) -> float:
        """From the publication of `version` to now; of one long forgotten, a lower bound."""
        known = self._times.get(version, min(self._times.values(), default=now_s))
        return now_s - known

    def lag(self, version: int) -> int:
        """Versions published since."""
        return max(0, (self.newest or 0) - version)
