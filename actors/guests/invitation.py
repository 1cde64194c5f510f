"""What a guest needs to find the door and to be let in: one small file, kept as a secret."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from milepost.actors.guests.address import InvitationError, read_tcp
from milepost.configs.spec import Address
from milepost.messages.bus.curve import new_keys
from milepost.messages.envelope import PROTOCOL

INVITATION: Final = "guests.json"
"""Its name in the private part of a run folder."""
BACKLOG: Final = 64


class Invitation(Struct, frozen=True, kw_only=True):
    """Written by the door (mode 0600), read by guests. On tcp the keys are what lets one in."""

    endpoint: str
    """`ipc://PATH` or `tcp://HOST:PORT`; on another machine HOST may have to be replaced."""
    run_id: str
    protocol: str = f"{PROTOCOL[0]}.{PROTOCOL[1]}"
    server_public_key: str = ""
    """CURVE (Z85), tcp only: of the door."""
    secret_key: str = ""
    """CURVE (Z85), tcp only: the guests' own."""
    public_key: str = ""
    """Of `secret_key`."""


class Doorway(Struct, frozen=True, kw_only=True):
    """Where the door listens, and its own half of the keys."""

    invitation: Invitation
    door_secret_key: str = ""
    listen_fd: int = -1
    """A bound, listening tcp socket."""

    @property
    def address(self) -> Address:
        """Of the door's mailbox."""
        public = self.invitation.server_public_key
        return Address(endpoint=self.invitation.endpoint, public_key=public)


def open_doorway(listen: str, ipc_folder: Path, run_id: str, private: Path) -> Doorway:
    """Find the door's address and keys, and write the invitation.

    A door that was started again keeps its keys, so that guests find their way back.

    Args:
        listen: `ipc`, or `tcp://HOST:PORT`.
        ipc_folder: the run's private folder of sockets.
        run_id: of the run.
        private: the private part of the run folder.

    Raises:
        InvitationError: `listen` is neither, or cannot be listened on.
    """
    path = private / INVITATION
    if listen == "ipc":
        endpoint = f"ipc://{ipc_folder}/guests-door"
        doorway = Doorway(invitation=Invitation(endpoint=endpoint, run_id=run_id))
    else:
        doorway = _open_tcp(listen, run_id, private / "guests-key.json")
    _write_private(path, msgspec.json.format(msgspec.json.encode(doorway.invitation), indent=2))
    return doorway


def _open_tcp(listen: str, run_id: str, keys_path: Path) -> Doorway:
    host, port = read_tcp(listen)
    try:
        listening = socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise InvitationError(
            f"cannot listen on {listen} at $.actors.guests.listen: {error}"
        ) from error
    port = listening.getsockname()[1]
    if keys_path.exists() and (known := json.loads(keys_path.read_bytes()))["run_id"] == run_id:
        door, guest = known["door"], known["guest"]
    else:
        door, guest = new_keys(), new_keys()
        record = {"run_id": run_id, "door": door, "guest": guest}
        _write_private(keys_path, json.dumps(record).encode())
    invitation = Invitation(
        endpoint=f"tcp://{host}:{port}",
        run_id=run_id,
        server_public_key=door[0],
        public_key=guest[0],
        secret_key=guest[1],
    )
    return Doorway(invitation=invitation, door_secret_key=door[1], listen_fd=listening.detach())


def read_invitation(where: str, keys: Path | None = None) -> Invitation:
    """The invitation that `where` leads to.

    Args:
        where: an invitation file, a run folder, or with `keys` an address.
        keys: an invitation file whose address is replaced by `where`.

    Raises:
        InvitationError: there is none, or it cannot be read.
    """
    if where.startswith(("tcp://", "ipc://")):
        if keys is None:
            raise InvitationError(
                f"{where} alone lets nobody in: name the run's invitation, too "
                f"(--invitation RUN/.milepost/{INVITATION}, copied to this machine)"
            )
        return msgspec.structs.replace(read_invitation(str(keys)), endpoint=where)
    path = Path(where)
    if path.is_dir():
        path = path / ".milepost" / INVITATION
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Invitation)
    except FileNotFoundError as error:
        raise InvitationError(
            f"no invitation at {path}: has the topology [actors.guests], and is the run going on"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise InvitationError(f"{path} cannot be read as an invitation: {error}") from error
    if found.protocol.partition(".")[0] != str(PROTOCOL[0]):
        raise InvitationError(
            f"the run of {path} speaks protocol {found.protocol}, this installation "
            f"{PROTOCOL[0]}.{PROTOCOL[1]}: major versions differ, use the run's own version"
        )
    return found


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
