"""Why a turn is not taken. Raised while it is planned, so nothing has changed yet."""

from __future__ import annotations

from milepost.messages.session import ChatRefused


class TurnRefused(ValueError):
    """A turn that is answered with `ChatRefused`.

    Attributes:
        kind: one of the kinds of `ChatRefused`.
        limit: name of the bound that was reached, if one was.
        parent: of a tree, number of the turn that could not be continued; None: of no one's.
    """

    def __init__(
        self, kind: str, reason: str, *, limit: str = "", parent: int | None = None
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.limit = limit
        self.parent = parent

    def message(self) -> ChatRefused:
        """The answer to the asker."""
        return ChatRefused(kind=self.kind, reason=str(self), limit=self.limit)
