"""Why a chat gave no reply. An agent may catch these; what it does not catch ends the episode."""

from __future__ import annotations


class ChatError(RuntimeError):
    """Base of all: the request was refused, or could not be served. Nothing was generated."""


class LimitReached(ChatError):
    """A bound of the episode: no further reply will come, and the episode ends as truncated.

    Attributes:
        limit: name of the bound, e.g. `turns_max`.
    """

    def __init__(self, reason: str, limit: str) -> None:
        super().__init__(reason)
        self.limit = limit


class RequestRefused(ChatError):
    """The request is wrong: a history that does not append, a bad message. The agent's own fault.

    Attributes:
        kind: as in `ChatRefused`.
        reason: in words.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


class ServiceFailed(ChatError):
    """Session or engine could not serve: nobody's verdict, and never a reward."""


class EpisodeStopped(ChatError):
    """The run stopped this episode: its group was dropped, or the run drains."""


class GuestCodeFailed(RuntimeError):
    """Code that runs outside the job failed; the text is what its process said of it."""
