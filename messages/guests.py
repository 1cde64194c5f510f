"""What an agent from outside can ask at the guests' door; docs/agent-protocol.md tells it whole."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from milepost.messages.shared import (
    ChatMessage,
    EpisodeLimits,
    Finite,
    Message,
    NonNegative,
    Positive,
    Prompt,
    Purpose,
)


class GuestEpisode(Struct, frozen=True, kw_only=True):
    """One episode for a guest to run."""

    episode_id: str
    """Names it in everything the guest says of it; another attempt has another."""
    trajectory_id: str
    attempt: NonNegative
    prompt: Prompt
    limits: EpisodeLimits
    """Kept by the run; the guest hears of it when one is reached."""
    purpose: Purpose
    seed: NonNegative
    """For the environment's own randomness; equal for all members of a group."""
    address: str = ""
    """HTTP base URL of its session, for black-box harnesses; empty when that door is closed."""


class JoinRun(Message, kw_only=True):
    """First word of a guest; answered with `RunJoined` or `GuestRefused`."""

    name: str
    """For people: logs and errors."""
    episodes_max: NonNegative
    """Credit: episodes it runs at once."""
    client: str = ""
    """Program and version, for people."""


class RunJoined(Message, kw_only=True):
    """Answer to `JoinRun`."""

    token: str
    """Proves in every later question who asks."""
    heartbeat_s: float
    """`TakeEpisodes` is answered within this time, also when there is nothing to tell."""
    silence_s: float
    """A guest not heard for longer is gone, and its episodes are issued again."""
    data_options: dict[str, Any] = {}
    """`data.options` of the topology."""


class GuestRefused(Message, kw_only=True):
    """Answer to any question of a guest that cannot be served; nothing was changed."""

    kind: str
    """full, over (the run ends), unknown_guest (join again), unknown_episode, bad_request."""
    reason: str


class TakeEpisodes(Message, kw_only=True):
    """Credit and heartbeat in one; answered with `EpisodesGiven` as soon as there is news.

    One at a time: a second one has the first answered at once. What was given and is not in
    `running` is given again, so that an answer that was lost costs nothing.
    """

    token: str
    episodes_max: NonNegative
    """Credit: episodes it runs at once, those in `running` included; 0 when it means to leave."""
    running: tuple[str, ...]
    """Ids of the episodes it has and has not reported."""


class Goodbye(Struct, frozen=True, kw_only=True):
    """The run is over, or is being stopped."""

    status: str
    """`done`: the work was done. Else what the run ended as (`failed`, `stopped`, ...)."""
    reason: str
    """For people."""


class EpisodesGiven(Message, kw_only=True):
    """Answer to `TakeEpisodes`."""

    episodes: tuple[GuestEpisode, ...] = ()
    """To be started now."""
    cancelled: dict[str, str] = {}
    """Episodes of `running` to be stopped at once, with the reason: nothing more counts."""
    goodbye: Goodbye | None = None
    """Set: nothing more is given. Finish what is not cancelled, and leave."""


class GuestChat(Message, kw_only=True):
    """The whole history so far plus what is new; `ChatReply`, `ChatRefused` or `GuestRefused`.

    With `stream` also `ReplyPart`, which is not the end: ask `MoreOfReply` then.
    """

    token: str
    episode_id: str
    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    """Nil: those of the prompt."""
    tokens_max: Positive | None = None
    """A tighter bound for this reply than the episode's."""
    stream: bool = False
    """Answer as soon as there is any part of the reply."""
    number: NonNegative = 0
    """Of this chat among those of its episode. One of the same number takes its place; where
    sessions are trees, others go on beside it."""


class MoreOfReply(Message, kw_only=True):
    """The rest of a streamed chat; answered as soon as there is more of it, as `GuestChat` is."""

    token: str
    episode_id: str
    number: NonNegative = 0
    """Of the chat."""


class GiveUpChat(Message, kw_only=True):
    """Nobody waits for this chat any more; answered with `ChatGivenUp`.

    It is stopped, if it is not over, and its open question is answered with `ChatRefused`.
    """

    token: str
    episode_id: str
    number: NonNegative = 0
    """Of the chat."""


class ChatGivenUp(Message, kw_only=True):
    """Answer to `GiveUpChat`, also when there was no such chat."""


class ReplyPart(Message, kw_only=True):
    """What a streamed reply has grown by since the last answer; `ChatReply` has the whole."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    """Whole calls, as in the message."""


class ReportEpisode(Message, kw_only=True):
    """What an episode came to; answered with `ReportTaken`. After the final one it is over."""

    token: str
    episode_id: str
    reward: Finite | None = None
    """Nil when the run has a reward function of its own, or there is none to give."""
    metrics: dict[str, Finite] = {}
    info: dict[str, Any] = {}
    error: str = ""
    """Why the code failed: no reward then, whatever else is set."""
    stopped: str = ""
    """Why a chat said that the run stopped the episode (`closed`): it is issued again, then."""
    received: tuple[NonNegative, ...] = ()
    """`ChatReply.generation` of each reply that it got, when final; empty: it cannot tell."""
    is_final: bool = True
    """False: the result so far, which counts if a bound of time ends the episode."""


class ReportTaken(Message, kw_only=True):
    """Answer to `ReportEpisode`."""

    counts: bool
    """False: the episode was over, or is somebody else's now, and the report changes nothing."""


class LeaveRun(Message, kw_only=True):
    """Last word of a guest; answered with `RunLeft`."""

    token: str
    reason: str


class RunLeft(Message, kw_only=True):
    """Answer to `LeaveRun`."""

    num_episodes: NonNegative
    """Episodes it had and had not reported: they are issued again."""


GuestsInbox: TypeAlias = (
    JoinRun | TakeEpisodes | GuestChat | MoreOfReply | GiveUpChat | ReportEpisode | LeaveRun
)
"""What the guests' door can be asked."""
