"""The clients' door over tcp, for `ps`, `queues`, `stop` and the others from another machine.

Open when the run's own mailboxes are on tcp. Keys are made for the run; the clients' half of them
lies in a file that its owner copies to wherever the commands are to run, and nobody else reads.
"""

from __future__ import annotations

import asyncio
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

    def close(self) -> None:
        """Stop listening, where nobody has begun to."""
        self.listener.close()

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
        try:
            await asyncio.to_thread(self._write_ticket, run_folder / PRIVATE / TICKET)
        except OSError:
            await door.close()
            raise
        return door

    def _write_ticket(self, path: Path) -> None:
        """A new file each time: one that is there may be open to others, or be read right now."""
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self.ticket))
        draft.replace(path)
