"""What an agent actor can be told."""

from __future__ import annotations

from typing import Any, TypeAlias

from milepost.messages.shared import (
    EpisodeLimits,
    Message,
    NonNegative,
    Positive,
    Prompt,
    Purpose,
)


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


class ChatPart(Message, kw_only=True):
    """More of a reply that is being sampled (`ChatTurn.stream`).

    Nothing rests on it: the `ChatReply` has the whole message. A part that cannot be delivered is
    dropped, and its number is missing.
    """

    stream: str
    """As the turn named it."""
    number: Positive
    """Of this part in its reply, from 1."""
    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    """Whole calls, as in the message."""


class RunEnds(Message, kw_only=True):
    """The run is over or is being stopped; the door of the guests says so to them."""

    status: str
    """As in summary.json: done, failed, stopped, ..."""
    reason: str


AgentInbox: TypeAlias = RunEpisode | CancelEpisode | ChatPart | RunEnds
