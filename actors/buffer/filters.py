"""Which complete groups are worth training on, judged when they are about to be stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeAlias

from milepost.actors.buffer.candidates import Candidate
from milepost.actors.buffer.metrics import is_flat
from milepost.messages.shared import Status

Filter: TypeAlias = Callable[[Candidate], str]
"""A complete group -> why it is dropped, in a word, or "" to keep it."""


class FilterError(ValueError):
    """A filter named in the topology cannot be used."""


def zero_spread(candidate: Candidate) -> str:
    """Drops a group whose rewards are all equal: every advantage would be zero (DAPO)."""
    return "zero_spread" if is_flat(candidate.rewards) else ""


def truncated(candidate: Candidate) -> str:
    """Drops a group of which a bound (turns, seconds, tokens) cut a member off."""
    return "truncated" if Status.TRUNCATED in candidate.statuses else ""


BUILT_IN: dict[str, Filter] = {"zero_spread": zero_spread, "truncated": truncated}


def load_filters(names: Sequence[str]) -> tuple[Filter, ...]:
    """The filters called by these names, in order.

    Raises:
        FilterError: neither built in nor an importable `module:function`.
    """
    return tuple(_load(name) for name in names)


def _load(name: str) -> Filter:
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, _, function_name = name.partition(":")
    if not function_name:
        known = ", ".join(BUILT_IN)
        raise FilterError(f"unknown filter {name!r}, built in are {known}; or name module:function")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise FilterError(f"filter {name!r}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise FilterError(f"filter {name!r}: module {module_name} has no function {function_name}")
    found: Filter = function
    return found


def first_reason(filters: Sequence[Filter], candidate: Candidate) -> str:
    """Why the group is dropped, by the first filter that drops it; "" when all keep it.

    Raises:
        FilterError: a filter answered something that is not a string.
    """
    for each in filters:
        reason = each(candidate)
        if not isinstance(reason, str):
            raise FilterError(
                f"filter {getattr(each, '__name__', each)} answered {reason!r} for "
                f"{candidate.group_id} with rewards {list(candidate.rewards)}, it must answer a "
                f"reason or ''"
            )
        if reason:
            return reason
    return ""


@dataclass(slots=True)
class Sieve:
    """The filters of one buffer, and how many groups in a row they let nothing of through.

    What is dropped is replaced, so filters that keep nothing would have groups sampled for ever.
    """

    filters: tuple[Filter, ...]
    in_a_row_max: int
    """0: no such bound."""
    _in_a_row: Counter[str] = field(default_factory=Counter)
    """Reason -> groups dropped since the last one that was kept."""

    @property
    def is_slow(self) -> bool:
        """A filter of the user's own is among them: it is called off the event loop."""
        return any(each not in BUILT_IN.values() for each in self.filters)

    def reason(self, candidate: Candidate) -> str:
        """Why this group is dropped, by the built-in filters; "" when it is kept."""
        return first_reason(self.filters, candidate)

    def judged(self, reason: str) -> None:
        """Count what became of a group."""
        if reason:
            self._in_a_row[reason] += 1
        else:
            self._in_a_row.clear()

    @property
    def fault(self) -> str:
        """Why the run cannot go on like this; "" while it can."""
        count = self._in_a_row.total()
        if not self.in_a_row_max or count < self.in_a_row_max:
            return ""
        reasons = ", ".join(f"{by} by {each}" for each, by in self._in_a_row.most_common())
        return (
            f"actors.buffer.filters dropped {count} groups in a row and kept none ({reasons}), "
            f"guard.groups_filtered_in_a_row_max is {self.in_a_row_max}: give prompts that the "
            f"policy neither always nor never solves, take the filter out, or raise the limit"
        )
