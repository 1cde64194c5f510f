"""What reaches the core through a door of its own process, and what leaves through it.

Bus and doors are served by one core: a chat that comes over HTTP is the chat of an agent actor,
plus what only a door can do. Nothing here travels between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from milepost.actors.effects import Work
from milepost.messages.session import ChatTurn

if TYPE_CHECKING:
    from milepost.actors.effects import Request
    from milepost.actors.session.families import ReplyDelta

DOOR: Final = "@http"
"""Source of what comes through the HTTP door; no process can have this name."""


class DoorTurn(ChatTurn, kw_only=True):
    """A chat turn of a client of the door; with any `stream` the parts are the door's."""


@dataclass(frozen=True, slots=True)
class StreamReply(Work):
    """More of a reply that is being sampled, for the door; the answer follows as `Reply`.

    The door takes it out of the core's effects. No `WorkDone` follows.
    """

    request: Request
    deltas: tuple[ReplyDelta, ...]
