"""Where the mailbox of each process of a run is, and what lets it be there.

On ipc that is a path. On tcp it is a listening socket that this process has bound and a CURVE key
pair made for this run: a child inherits the descriptor and is told its secret, so there is never a
port number to race for, and a restarted child takes up the connections that waited meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.configs.spec import Address
from milepost.configs.system import SystemConfig
from milepost.messages.bus import new_keys
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.cleanup.listeners import listener_record
from milepost.supervisor.sockets import addresses, listen, tcp_endpoint


@dataclass(slots=True)
class Homes:
    """The mailboxes of one run.

    Attributes:
        addresses: of every actor and of the supervisor; what all may know.
    """

    addresses: dict[str, Address]
    _secrets: dict[str, str] = field(default_factory=dict)
    _listeners: dict[str, socket.socket] = field(default_factory=dict)

    @classmethod
    def open(cls, system: SystemConfig, folder: Path, actors: Iterable[str]) -> Homes:
        """Paths in `folder`, or sockets bound to `system.host`, for these actors and us.

        Raises:
            OSError: `system.host` is no address of this machine.
            ValueError: a name makes the path of a socket too long.
        """
        if system.transport == "ipc":
            return cls(addresses(folder, actors))
        homes = cls({})
        try:
            for name in (*actors, SUPERVISOR):
                homes._listen(name, system.host)
        except OSError:
            homes.close()
            raise
        return homes

    def _listen(self, name: str, host: str) -> None:
        listener = listen(host)
        self._listeners[name] = listener
        public_key, self._secrets[name] = new_keys()
        self.addresses[name] = Address(endpoint=tcp_endpoint(listener, host), public_key=public_key)

    def secret_key(self, name: str) -> str:
        """The CURVE secret of one process (Z85); empty on ipc."""
        return self._secrets.get(name, "")

    def listen_fd(self, name: str) -> int:
        """Descriptor of its listening socket; it stays ours. -1 on ipc."""
        listener = self._listeners.get(name)
        return -1 if listener is None else listener.fileno()

    def records(self) -> list[dict[str, Any]]:
        """Every listening socket, for the registry of what the run owns."""
        return [
            listener_record(name, self.addresses[name].endpoint, listener.fileno())
            for name, listener in self._listeners.items()
        ]

    def own_listen_fd(self) -> int:
        """Descriptor of the supervisor's listening socket, for its bus to own. -1 on ipc."""
        listener = self._listeners.pop(SUPERVISOR, None)
        return -1 if listener is None else listener.detach()

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners.values():
            listener.close()
