"""What the evaluator can be told; also `VersionPublished`, `EpisodeEnded`, `TrajectoryFinished`."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from milepost.messages.shared import ChatMessage, Message, NonNegative, Positive, Seconds


class EvaluateNow(Message, kw_only=True):
    """Evaluate the version being served, out of turn."""

    reason: str
    deadline_s: Seconds = 600.0
    prompts_max: Positive | None = None


class CheckpointOffered(Message, kw_only=True):
    """A checkpoint is complete on disk; answered with `CheckpointTaken` when training may go on.

    It is answered at once unless an older one is still being measured and the policy is to wait.
    """

    step: NonNegative
    """Version of its weights."""
    folder: str
    final: bool = False
    """No further version will come."""


class CheckpointTaken(Message, kw_only=True):
    """Answer to `CheckpointOffered`: the checkpoint is kept for its evaluation, or not needed."""

    step: NonNegative


class Score(Struct, frozen=True, kw_only=True):
    """How one version did on the held-out prompts, under one way of choosing tokens."""

    num_episodes: NonNegative
    """Episodes with a reward; failed ones are left out and counted in `num_failed`."""
    num_failed: NonNegative = 0
    num_mixed: NonNegative = 0
    """Episodes refused because some token was not of the version measured."""
    num_missing: NonNegative = 0
    """Prompts whose episode had no time to end."""
    success: float | None = None
    """Mean of the success metric (`data.success_metric`); None when no agent reported it."""
    reward: float
    success_by_category: dict[str, float] = {}
    """The same for each value of `category` in the prompts' metadata, where prompts have it."""
    metrics: dict[str, float] = {}
    """Mean of each number that agents reported, over the episodes that reported it."""
    truncated_ratio: float = 0.0
    sampled_tokens: float = 0.0
    """Mean over episodes."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """`values` of the event of kind `evaluation`, and one entry of summary.json's `scores`."""

    version: NonNegative
    seconds: float
    delay_s: float = 0.0
    """From the publication of the version, or its checkpoint, to its score."""
    lag_steps: NonNegative = 0
    """Versions that were published, or saved, between the one measured and its score."""
    sampled: Score | None = None
    """Replies sampled as in training."""
    greedy: Score | None = None
    """Always the most likely token."""
    external: dict[str, float] = {}
    """What the user's own evaluation of the checkpoint gave (`actors.evaluator.external`)."""


class Transcript(Struct, frozen=True, kw_only=True):
    """One held-out conversation kept for people: a line of RUN/transcripts.jsonl."""

    version: NonNegative
    greedy: bool
    prompt_id: str
    reward: float
    metrics: dict[str, float] = {}
    messages: list[ChatMessage]
    """The whole conversation as the agent saw it."""


EvaluatorInbox: TypeAlias = EvaluateNow | CheckpointOffered
