"""Questions of others that an actor has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from milepost.actors.effects import Request

if TYPE_CHECKING:
    from milepost.messages.bus import Incoming


class Questions:
    """Kept for as long as an answer would be heard: cores may leave one, and answer the next.

    A trainer whose batch takes long asks once more at each deadline, for weeks.

    Args:
        is_waited_for: whether who asked still waits.
    """

    def __init__(self, is_waited_for: Callable[[Incoming], bool]) -> None:
        self._is_waited_for = is_waited_for
        self._open: dict[Request, Incoming] = {}

    def __len__(self) -> int:
        """Not answered, as far as it was looked at."""
        return len(self._open)

    def add(self, incoming: Incoming) -> Request:
        """One more; the handle that its answer will name."""
        request = Request(incoming.source, incoming.message_id)
        self._open[request] = incoming
        return request

    def take(self, request: Request) -> Incoming | None:
        """It is answered now; None when it was before, or nobody waits any more."""
        return self._open.pop(request, None)

    def forget(self) -> None:
        """Let go of those that nobody waits for."""
        late = [each for each, asked in self._open.items() if not self._is_waited_for(asked)]
        for request in late:
            del self._open[request]
