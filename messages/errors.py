"""What can go wrong between two actors, each with its name."""

from __future__ import annotations


class ProtocolError(Exception):
    """A peer sent something that this side cannot or will not read."""


class BusError(Exception):
    """Base of what the bus raises to the actor that uses it."""


class AddressError(BusError):
    """A mailbox cannot be bound: the address is taken, too long, or malformed."""


class BusClosed(BusError):
    """This side closed the bus."""


class Undelivered(BusError):
    """A message is not known to have been taken by its receiver.

    Args:
        to: name of the receiver.
        reason: message type, how long it was tried, and what is known of the peer.
        no_room: it was never sent, since too many wait for that receiver already.
    """

    def __init__(self, to: str, reason: str, *, no_room: bool = False) -> None:
        super().__init__(f"{to}: {reason}")
        self.to = to
        self.reason = reason
        self.no_room = no_room


class Unanswered(Undelivered):
    """A question got no answer; it may or may not have been taken."""
