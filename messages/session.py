"""What a session actor can be asked and told."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from milepost.messages.bulk import Bulk
from milepost.messages.shared import (
    ChatMessage,
    EpisodeLimits,
    FinishReason,
    Finite,
    Message,
    NonNegative,
    Positive,
    Prompt,
    Purpose,
    SamplingParams,
    Status,
    Usage,
)


class SessionSpec(Struct, frozen=True, kw_only=True):
    """One session to open. The session id is the trajectory id."""

    trajectory_id: str
    group_id: str
    prompt_id: str
    attempt: NonNegative
    group_size: Positive
    sampling: SamplingParams
    limits: EpisodeLimits
    purpose: Purpose
    deliver_to: str
    """Actor that gets `TrajectoryFinished`: the buffer, or the evaluator."""
    version_min: NonNegative | None = None
    """Oldest version that may generate; None: the newest one that was published."""


class OpenSessions(Message, kw_only=True):
    """Open these sessions; answered with `SessionsOpened` when all exist."""

    sessions: tuple[SessionSpec, ...]


class SessionsOpened(Message, kw_only=True):
    """Answer to `OpenSessions`."""

    addresses: tuple[str, ...] = ()
    """HTTP base URL of each session in order; empty when the HTTP door is closed."""


class SessionsRefused(Message, kw_only=True):
    """Answer to `OpenSessions`: none was opened."""

    reason: str


class ChatTurn(Message, kw_only=True):
    """The whole history so far plus what is new; answered with `ChatReply` or `ChatRefused`."""

    trajectory_id: str
    messages: list[ChatMessage]
    tools: list[dict[str, Any]] = []
    tokens_max: Positive | None = None
    """Lower bound than the session's own for this reply."""
    attempt: NonNegative | None = None
    """Refused as closed when the session is open for another attempt; None skips the check."""
    stream: str = ""
    """Not empty: parts of the reply are told under this name while it is sampled (`ChatPart`)."""
    adapter: str = ""
    """Name of the adapter to sample this reply under; empty: the policy itself. Refused where a row
    of the session may be trained: such a reply is not the policy's."""
    number: NonNegative = 0
    """Of this question among those of its asker, for `ClientGone`; 0: it is not given up."""


class ClientGone(Message, kw_only=True):
    """Nobody waits for the reply to this `ChatTurn` any more: it is stopped, if it is not over.

    A reply that crosses this word is the session's all the same; that it was not received, the
    verdict tells.
    """

    trajectory_id: str
    number: Positive
    """`ChatTurn.number`."""
    reason: str
    """Why not."""


class ChatReply(Message, kw_only=True):
    """The assistant's message and how it ended."""

    message: ChatMessage
    finish_reason: FinishReason
    usage: Usage
    versions: tuple[NonNegative, ...]
    """Weight versions that generated this reply, in order."""
    generation: NonNegative = 0
    """Number of this reply in its session, from 1; the verdict names the last one received."""
    limit: str = ""
    """Bound of the run that cut this reply off; empty when it ended by itself, or at
    `ChatTurn.tokens_max`."""


class ChatRefused(Message, kw_only=True):
    """The turn was not generated and changed nothing."""

    kind: str
    """unknown_session, unknown_adapter, bad_request, not_append_only, truncated, limit, closed,
    engine, internal."""
    reason: str
    limit: str = ""
    """Name of the bound (`turns_max`, `reply_tokens_max`, `tokens_max`); kinds limit, truncated."""


class GeneratedPart(Message, kw_only=True):
    """Tokens [start, start + N) of a reply that an engine still samples (`Generate.stream`).

    Told while the request is in flight, never more than one that was not taken yet. Nothing rests
    on it: the answer to `Generate` has every token again.
    """

    request_id: str
    start: NonNegative
    token_ids: Bulk
    """int32 [N]"""


class ConversationAsked(Message, kw_only=True):
    """What was said so far; answered with `ConversationTold`, or `ChatRefused` (unknown_session).

    For agents whose replies came another way than over the bus: the session alone saw them.
    """

    trajectory_id: str
    attempt: NonNegative
    known: NonNegative = 0
    """`ChatReply.generation` of the newest reply that the asker has; 0: none."""
    received: tuple[NonNegative, ...] = ()
    """Those of all replies that it has."""


class ConversationTold(Message, kw_only=True):
    """Answer to `ConversationAsked`: the newest conversation of the session.

    Replies that neither the asker nor a client of the session's door has received are none of it.
    """

    generation: NonNegative = 0
    """Number of its newest reply; 0: there is none."""
    received: tuple[NonNegative, ...] = ()
    """Numbers of the replies that clients of the session's own door have received."""
    num_turns: NonNegative = 0
    """Replies of the session."""
    messages: list[ChatMessage] = []
    """Empty when the asker's newest reply is the session's, too."""
    limit: str = ""
    """Bound that refused the newest request, or cut off the newest reply."""
    fault: str = ""
    """Why the newest request could not be served; empty when it was, or when it was wrong."""


class FinishTrajectory(Message, kw_only=True):
    """The verdict: assemble the row and deliver it.

    Answered by `TrajectorySent`, or by `TrajectoryLost` when there is no row to deliver (the
    session is unknown here, belongs to another attempt, or never generated a reply). Asked again
    for the same attempt, the answer is the same and nothing is delivered twice.
    """

    trajectory_id: str
    attempt: NonNegative
    status: Status
    reward: Finite
    metrics: dict[str, float] = {}
    generation: NonNegative | None = None
    """The last reply that the reward has seen. Later turns are cut off; when its own turn was tried
    again since, there is no row to deliver. None: the reward is of whatever is there."""
    received: tuple[NonNegative, ...] = ()
    """Every reply that was received. Others are cut off, unless one of these continues them; empty:
    the agent cannot tell."""
    limit: str = ""
    """Bound that ended the episode, when the session cannot know it (`seconds_max`)."""


class TrajectorySent(Message, kw_only=True):
    """The destination has acknowledged the trajectory."""

    trajectory_id: str
    num_tokens: NonNegative
    num_sampled_tokens: NonNegative


class AbandonTrajectory(Message, kw_only=True):
    """Stop generation of this session at once and forget it. `TrajectoryAbandoned`, when asked."""

    trajectory_id: str
    attempt: NonNegative
    reason: str


class TrajectoryAbandoned(Message, kw_only=True):
    """Answer to `AbandonTrajectory`, also when there was nothing to abandon."""

    trajectory_id: str


class ImportConversations(Message, kw_only=True):
    """Recorded conversations to render as rows for supervised training.

    Each prompt's messages are a whole conversation; assistant text gets mask 1. The rows are
    delivered to `deliver_to` in one `TrajectoriesFinished`, one group of one for each prompt.
    Answered by `ConversationsImported` or `ConversationsRefused`.
    """

    prompts: tuple[Prompt, ...]
    group_ids: tuple[str, ...]
    deliver_to: str


class ConversationsImported(Message, kw_only=True):
    """Answer to `ImportConversations`: every row was acknowledged by its destination."""

    num_tokens: NonNegative


class ConversationsRefused(Message, kw_only=True):
    """Answer to `ImportConversations`: nothing was delivered."""

    reason: str


SessionInbox: TypeAlias = (
    OpenSessions
    | ChatTurn
    | ClientGone
    | GeneratedPart
    | ConversationAsked
    | FinishTrajectory
    | AbandonTrajectory
    | ImportConversations
)
