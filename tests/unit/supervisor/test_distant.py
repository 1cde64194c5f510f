"""The clients' door over tcp, before anybody listens."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from milepost.supervisor.distant import DistantDoor
from milepost.supervisor.ticket import Ticket


def test_a_ticket_is_its_owner_s_alone_whatever_lay_in_its_place(tmp_path: Path) -> None:
    """It holds a secret. A copy that was put back after a move is open to others, and stayed so."""
    door = DistantDoor.bind("127.0.0.1", "ab")
    path = tmp_path / "attach.json"
    path.write_text("of the life before")
    path.chmod(0o644)
    with path.open(encoding="ascii") as reading:
        door._write_ticket(path)
        assert reading.read() == "of the life before", "who reads it gets one or the other, whole"
    assert path.stat().st_mode & 0o777 == 0o600
    assert msgspec.json.decode(path.read_bytes(), type=Ticket) == door.ticket
    assert [one.name for one in tmp_path.iterdir()] == ["attach.json"]
    port = door.listener.getsockname()[1]
    door.close()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0, "nobody opened it, and it is closed"
