"""The score of the last version is owed: tried again while that may help, and missed by name.

Without it nobody can say what the run was good for. A version in between that gets no score costs
one point of a curve; the last one has no successor that could stand in for it. What went wrong may
heal (engines that start again, a busy GPU, an environment that is down), so another try follows
after a pause that grows, as long as a try may begin: within `patience_s` of the first failure, and
`TRIES_MAX` of those that really measured. Then the work is finished with a problem, and the run
has failed for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from milepost.actors.effects import Effect, Wake
from milepost.actors.evaluator.words import event

OWED: Final = "owed"
"""Key of the pause before another try."""
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
TRIES_MAX: Final = 3


@dataclass(slots=True)
class Debt:
    """See the module.

    Attributes:
        patience_s: seconds after the first failure in which another try may begin.
        problem: why the last version has no score, once that is certain; empty before.
        is_waiting: another try follows when the pause is over.
    """

    patience_s: float
    problem: str = ""
    is_waiting: bool = False
    _first: str = ""
    _since_s: float = 0.0
    _num_tries: int = 0
    _num_measured: int = 0

    def missed(
        self, version: int, reason: str, why: str, now_s: float, *, measured: bool, heals: bool
    ) -> list[Effect]:
        """A try ended without a score. If no other one follows, that is the version's outcome.

        Args:
            version: the last one.
            reason: one word, as in `eval/skipped_REASON`.
            why: for people; may be empty.
            now_s: now.
            measured: the try got as far as measuring, which is what costs something.
            heals: False if another try would only wait for what was waited for already.
        """
        cause = reason + (f": {why}" if why else "")
        if not self._num_tries:
            self._first, self._since_s = cause, now_s
        self._num_tries += 1
        self._num_measured += measured
        pause_s = min(PAUSE_S * 2.0 ** (self._num_tries - 1), PAUSE_MAX_S)
        left_s = self._since_s + self.patience_s - now_s - pause_s
        if heals and left_s >= 0.0 and self._num_measured < TRIES_MAX:
            self.is_waiting = True
            said = (
                f"version {version}, the last one, has no score yet ({cause}): tried again in "
                f"{pause_s:g} s, and given up {left_s:.0f} s after that"
            )
            return [event("evaluation_owed", said), Wake(OWED, now_s + pause_s)]
        self.is_waiting = False
        times = "once" if self._num_tries == 1 else f"{self._num_tries} times"
        spent_s = now_s - self._since_s
        self.problem = (
            f"version {version}, the last one, has no score: {self._first}; tried {times} "
            f"in {spent_s:.0f} s, and actors.evaluator.at_end asks for it"
        )
        return [event("evaluation_failed", self.problem)]

    def woken(self) -> bool:
        """The pause is over; whether a try is still owed."""
        was_waiting, self.is_waiting = self.is_waiting, False
        return was_waiting

    def paid(self) -> None:
        """The score is there."""
        self.is_waiting, self.problem = False, ""
