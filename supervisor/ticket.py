"""What a client on another machine needs to reach a run, in one small file kept as a secret."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

TICKET: Final = "attach.json"
"""Its name in the private part of the run folder."""


class Ticket(Struct, frozen=True, kw_only=True):
    """Written by a run on tcp (mode 0600); its keys are what lets a client in."""

    run_id: str
    endpoint: str
    """`tcp://HOST:PORT`; behind a translated address HOST may have to be replaced."""
    server_public_key: str
    """CURVE (Z85), of the door."""
    secret_key: str
    """CURVE (Z85), the clients' own."""
