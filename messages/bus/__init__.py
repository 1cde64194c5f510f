"""The message bus: mailboxes, links, acknowledgements, credits."""

from milepost.messages.bus.borrowing import segment_prefix
from milepost.messages.bus.bus import Bus
from milepost.messages.bus.curve import new_keys
from milepost.messages.bus.incoming import Incoming
from milepost.messages.bus.statistics import (
    BusStatistics,
    LinkStatistics,
    LoopDelay,
    MailboxStatistics,
    MemoryStatistics,
)
from milepost.messages.bus.zeromq import Peer
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
    "BusStatistics",
    "Incoming",
    "LinkStatistics",
    "LoopDelay",
    "MailboxStatistics",
    "MemoryStatistics",
    "Peer",
    "ProtocolError",
    "Unanswered",
    "Undelivered",
    "new_keys",
    "segment_prefix",
]
