"""The clients' door over tcp, for `ps`, `queues`, `stop` and the others from another machine.

Open when the run's own mailboxes are on tcp. Keys are made for the run; the clients' half of them
lies in a file that its owner copies to wherever the commands are to run, and nobody else reads.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from milepost.configs.spec import Address
from milepost.messages.bus import new_keys
from milepost.supervisor.attach import Desk, Door
from milepost.supervisor.cleanup.listeners import listener_record
from milepost.supervisor.cleanup.registry import PRIVATE
from milepost.supervisor.sockets import ATTACH, listen, tcp_endpoint
from milepost.supervisor.ticket import TICKET, Ticket


@dataclass(frozen=True, slots=True)
class DistantDoor:
    """A bound socket and the keys to it, before anybody listens."""

    listener: socket.socket
    ticket: Ticket
    door_secret_key: str
    client_public_key: str

    @classmethod
    def bind(cls, host: str, run_id: str) -> DistantDoor:
        """At a free port of this host.

        Raises:
            OSError: it is no address of this machine.
        """
        listener = listen(host)
        door_public, door_secret = new_keys()
        client_public, client_secret = new_keys()
        ticket = Ticket(
            run_id=run_id,
            endpoint=tcp_endpoint(listener, host),
            server_public_key=door_public,
            secret_key=client_secret,
        )
        return cls(listener, ticket, door_secret, client_public)

    def record(self) -> dict[str, Any]:
        """The socket, for the registry of what the run owns."""
        return listener_record(ATTACH, self.ticket.endpoint, self.listener.fileno())

    async def open(self, desk: Desk, run_folder: Path) -> Door:
        """Answer from now on; the ticket is in RUN/.milepost/attach.json (mode 0600).

        Raises:
            AddressError: the socket cannot be used.
            OSError: the ticket cannot be written.
        """
        address = Address(endpoint=self.ticket.endpoint, public_key=self.ticket.server_public_key)
        door = await Door.open(
            address,
            self.ticket.run_id,
            desk,
            run_folder,
            secret_key=self.door_secret_key,
            client_keys=(self.client_public_key,),
            listen_fd=self.listener.detach(),
        )
        path = run_folder / PRIVATE / TICKET
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self.ticket))
        except OSError:
            await door.close()
            raise
        return door
