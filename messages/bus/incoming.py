"""What `receive` and `ask` give."""

from __future__ import annotations

from msgspec import Struct

from milepost.messages.bus.source import Entry
from milepost.messages.shared import Message


class Incoming(Struct, frozen=True, eq=False):
    """One message that arrived."""

    source: str
    source_incarnation: int
    message_id: int
    cause: int
    """Id of the message that led to this one; of our question, in an answer."""
    message: Message
    wants_reply: bool = False
    digest: int = 0
    """xxh3-64 of the body as it travelled: the same at both ends. 0: it is large, or a part of the
    message lies in shared memory."""
    entry: Entry | None = None
    """The bus's own note of where an answer goes."""
