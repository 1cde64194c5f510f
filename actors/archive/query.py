"""What can be asked of an archive, and what a line of the answer says."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from milepost.actors.archive.layout import Verdict
from milepost.messages.shared import NonNegative, Status

OrderBy: TypeAlias = Literal[
    "time",
    "reward",
    "advantage",
    "step",
    "staleness",
    "num_tokens",
    "num_sampled_tokens",
    "num_turns",
    "seconds",
    "trajectory_id",
]
TEXT_MIN: Final = 3
"""The index of conversations has parts of three characters. A shorter text would be looked for in
every one of them, for seconds, while all other pages wait."""
LOST_AT_RESUME: Final = "lost_at_resume"
"""Reason of what was trained after the checkpoint from which the run went on, and is gone."""
UNTRAINED: Final = "untrained_at_resume"
"""Reason of what was trained then, too, and is stored still: it is to be trained again."""
VOID: Final = (LOST_AT_RESUME, UNTRAINED)
"""Reasons for which the step that is told of it is none of the run's as it went on."""


class Query(Struct, frozen=True, kw_only=True):
    """Which trajectories; a field that is None leaves them all."""

    status: Status | None = None
    verdict: Verdict | None = None
    step: NonNegative | None = None
    """Batch that it was trained in, and that no resume made void."""
    group_id: str | None = None
    is_lost: bool | None = None
    """Whether a resume left it behind."""
    reward_min: float | None = None
    reward_max: float | None = None
    staleness_min: int | None = None
    has_mismatch: bool | None = None
    """Whether a row differs from its canonical rendering."""
    text: str | None = None
    """Substring of the conversation's first `TEXT_MAX` characters, whatever the case of letters; of
    `TEXT_MIN` characters or more."""
    order_by: OrderBy = "time"
    descending: bool = False


class Entry(Struct, frozen=True, kw_only=True):
    """One trajectory in a list."""

    trajectory_id: str
    attempt: NonNegative
    group_id: str
    prompt_id: str
    status: Status
    verdict: Verdict
    reason: str
    """Of the verdict; when it is not `dropped` empty, or `UNTRAINED`."""
    reward: float
    advantage: float | None
    """None: not trained."""
    step: NonNegative | None
    """Batch it was trained in last, in whatever life of the run; None: not trained."""
    staleness: int | None
    """`step` minus the oldest version of its trained tokens; None: not trained, or unknown."""
    num_tokens: NonNegative
    num_sampled_tokens: NonNegative
    num_turns: NonNegative
    has_mismatch: bool
    seconds: float | None
    """Of its episode; None: nobody said."""
    time: float
    """Unix time at which it came to the buffer."""

    @property
    def is_of_step(self) -> bool:
        """It was trained in its step, and no resume made that void."""
        return self.step is not None and self.reason not in VOID


class StepEntry(Struct, frozen=True, kw_only=True):
    """One trained batch in a list."""

    step: NonNegative
    time: float
    """Unix time at which the last of its rows was written."""
    num_groups: NonNegative
    num_trajectories: NonNegative
    num_sampled_tokens: NonNegative
    reward_mean: float
    reward_min: float
    reward_max: float
    staleness_max: int | None
    num_mismatches: NonNegative
    """Trajectories that differ from their canonical rendering."""


def where_of(query: Query) -> tuple[str, list[Any]]:
    """The SQL condition of a query over `trajectories`, with its values."""
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, value: Any) -> None:
        if value is not None:
            parts.append(condition)
            values.append(value)

    add("status = ?", query.status.value if query.status else None)
    add("verdict = ?", query.verdict.value if query.verdict else None)
    if query.step is not None:
        parts.append("step = ? AND reason NOT IN (?, ?)")
        values += (query.step, *VOID)
    add("group_id = ?", query.group_id)
    add("reward >= ?", query.reward_min)
    add("reward <= ?", query.reward_max)
    add("staleness >= ?", query.staleness_min)
    if query.is_lost is not None:
        parts.append("reason = ?" if query.is_lost else "reason != ?")
        values.append(LOST_AT_RESUME)
    if query.has_mismatch is not None:
        parts.append("mismatch" if query.has_mismatch else "NOT mismatch")
    if query.text:
        assert len(query.text) >= TEXT_MIN, f"{query.text!r} is in no index"
        add(
            "number IN (SELECT rowid FROM conversations WHERE text MATCH ?)",
            '"' + query.text.replace('"', '""') + '"',
        )
    return " AND ".join(parts) or "1", values


def order_of(query: Query) -> str:
    """The SQL order: what has no such number comes last, and ties go by arrival."""
    direction = "DESC" if query.descending else "ASC"
    column = query.order_by
    assert column in get_args(OrderBy), column
    return f"{column} IS NULL, {column} {direction}, number {direction}"
