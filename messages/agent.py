"""What an agent actor can be told."""

from __future__ import annotations

from typing import TypeAlias

from milepost.messages.shared import EpisodeLimits, Message, NonNegative, Prompt, Purpose


class RunEpisode(Message, kw_only=True):
    """Run one episode and report it with `EpisodeEnded` to `report_to`."""

    trajectory_id: str
    """Also the session id: the agent chats under this name."""
    group_id: str
    attempt: NonNegative
    prompt: Prompt
    limits: EpisodeLimits
    purpose: Purpose
    seed: NonNegative
    """For the environment's own randomness; equal for all members of a group."""
    session: str
    """Name of the session actor that owns the token row."""
    report_to: str
    """`rollout` or `evaluator`."""
    address: str = ""
    """HTTP base URL of the session, as `SessionsOpened` said; empty when its door is closed."""


class CancelEpisode(Message, kw_only=True):
    """Stop this episode now; its verdict is fixed. Answered by `EpisodeEnded` (aborted)."""

    trajectory_id: str
    reason: str


AgentInbox: TypeAlias = RunEpisode | CancelEpisode
