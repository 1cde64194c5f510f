"""Where a door for guests listens: the words of a topology, read without a socket or a key."""

from __future__ import annotations

import re
from typing import Final

PORT_MAX: Final = 65535


class InvitationError(ValueError):
    """An invitation or an address of a door that cannot be used; says why."""


def read_tcp(endpoint: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`, the host a name or an address of IPv4.

    Raises:
        InvitationError: it is no such address.
    """
    match = re.fullmatch(r"tcp://([^:/\s]+):([0-9]{1,5})", endpoint)
    if match is None or int(match[2]) > PORT_MAX:
        raise InvitationError(f'"{endpoint}" is no address of a door, write tcp://HOST:PORT')
    return match[1], int(match[2])
