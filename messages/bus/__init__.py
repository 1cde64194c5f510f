"""The message bus: mailboxes, links, acknowledgements, credits."""

from milepost.messages.bus.bus import Bus, Peer
from milepost.messages.bus.incoming import Incoming
from milepost.messages.errors import (
    AddressError,
    BusClosed,
    BusError,
    ProtocolError,
    Unanswered,
    Undelivered,
)
from milepost.messages.limits import BusLimits

__all__ = [
    "AddressError",
    "Bus",
    "BusClosed",
    "BusError",
    "BusLimits",
    "Incoming",
    "Peer",
    "ProtocolError",
    "Unanswered",
    "Undelivered",
]
