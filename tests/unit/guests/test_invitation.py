"""What leads a guest to a run: a file, a folder, an address with keys; and what does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from milepost.actors.guests.address import InvitationError
from milepost.actors.guests.invitation import (
    Invitation,
    open_doorway,
    read_invitation,
)


def written(folder: Path, **fields: str) -> Path:
    invitation = Invitation(endpoint="ipc:///x", run_id="r", **fields)
    path = folder / "guests.json"
    path.write_bytes(msgspec.json.encode(invitation))
    return path


def test_an_invitation_is_read_from_its_file_and_for_another_address(tmp_path: Path) -> None:
    path = written(tmp_path, secret_key="s")
    assert read_invitation(str(path)).endpoint == "ipc:///x"
    moved = read_invitation("tcp://10.0.0.5:7001", path)
    assert (moved.endpoint, moved.secret_key) == ("tcp://10.0.0.5:7001", "s")


def test_a_run_of_another_major_version_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """Its bytes may mean something else. A newer minor one only has fields that we pass over."""
    assert read_invitation(str(written(tmp_path, protocol="1.9"))).protocol == "1.9"
    with pytest.raises(InvitationError, match="major versions differ"):
        read_invitation(str(written(tmp_path, protocol="2.0")))


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("tcp://10.0.0.5:7001", "alone lets nobody in"),
        ("nowhere", "no invitation at"),
    ],
)
def test_what_leads_nowhere_says_what_to_do(tmp_path: Path, where: str, told: str) -> None:
    place = where if where.startswith("tcp") else str(tmp_path / where)
    with pytest.raises(InvitationError, match=told):
        read_invitation(place)


def test_a_port_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvitationError, match="is no address of a door"):
        open_doorway("tcp://127.0.0.1:99999", tmp_path, "r", tmp_path)
