"""What the evaluator can be told; also `VersionPublished`, `EpisodeEnded`, `TrajectoryFinished`."""

from __future__ import annotations

from typing import TypeAlias

from milepost.messages.shared import Message, Positive, Seconds


class EvaluateNow(Message, kw_only=True):
    """Evaluate the version being served, out of turn."""

    reason: str
    deadline_s: Seconds = 600.0
    prompts_max: Positive | None = None


EvaluatorInbox: TypeAlias = EvaluateNow
