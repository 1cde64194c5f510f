"""The checks of the HTTP door."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.checks.test_files import MACHINE

from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.supervisor.checks import Subject
from milepost.supervisor.checks.http import (
    guests_door_is_free,
    http_door_is_safe,
    http_key_is_readable,
    http_ports_are_free,
)
from milepost.supervisor.checks.wiring import guests_find_a_door
from milepost.supervisor.sockets import bound


def subject(**http: Any) -> Subject:
    replicas = http.pop("replicas", 1)
    session = {"replicas": replicas, "http": http}
    return Subject(
        decode({"run": {"name": "tiny", "steps": 1}, "actors": {"session": session}}), MACHINE
    )


def places(checked: Subject) -> list[str]:
    found = http_door_is_safe(checked)
    return [each.where.rpartition("http")[2] for each in found if isinstance(each, Problem)]


@pytest.mark.parametrize(
    ("http", "where"),
    [
        ({}, []),
        ({"host": "::1"}, []),
        ({"host": "10.0.0.1"}, [".free_sessions"]),
        ({"host": "10.0.0.1", "free_sessions": False}, []),
        ({"host": "10.0.0.1", "key_file": "k"}, []),
        ({"host": "0.0.0.0", "key_file": "k"}, [".advertised_host"]),
        ({"host": "gpu-7"}, [".host"]),
        ({"key_file": "k", "free_sessions": False}, [".key_file"]),
        ({"port": 65535, "replicas": 2}, [".port"]),
        ({"advertised_host": "gpu-7.cluster"}, []),
        ({"advertised_host": "fe80::1"}, []),
        ({"advertised_host": "http://gpu-7"}, [".advertised_host"]),
        ({"advertised_host": "gpu-7:8000"}, [".advertised_host"]),
        ({"dropped_fields": ["temperature", "input_ids", "tools", "tools.strict", "tools.type"]},
         [".dropped_fields[1]", ".dropped_fields[2]", ".dropped_fields[4]"]),
        ({"dropped_fields": ["metadata.user", "tools.function.strict", "seed", ""]},
         [".dropped_fields[0]", ".dropped_fields[1]", ".dropped_fields[3]"]),
    ],
)  # fmt: skip
def test_a_door_that_is_open_to_strangers_or_leads_nowhere_is_refused(
    http: dict[str, Any], where: list[str]
) -> None:
    """Nothing listens beyond this machine unless the topology says so, and says for whom."""
    assert places(subject(**http)) == where


def test_a_key_must_be_there_and_say_something(tmp_path: Path) -> None:
    """An empty key would open the door to everybody."""
    key = tmp_path / "key"
    assert list(http_key_is_readable(subject())) == []
    assert list(http_key_is_readable(subject(key_file=str(key)))) != []
    key.write_text("\n")
    assert list(http_key_is_readable(subject(key_file=str(key)))) != []
    key.write_text("secret")
    assert list(http_key_is_readable(subject(key_file=str(key)))) == []


def test_a_port_that_somebody_else_listens_at_is_told_before_anything_starts() -> None:
    """The session actor would die of it after the model was loaded, and name no port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (problem,) = http_ports_are_free(subject(port=port))
        assert str(problem) == (
            f"127.0.0.1:{port} cannot be listened on: Address already in use"
            " at $.actors.session.http.port, set another one, or 0 for any that is free"
        )
    assert list(http_ports_are_free(subject(port=0))) == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 alone takes no port of IPv4")
def test_a_port_of_all_addresses_is_taken_by_one_of_either_kind() -> None:
    """The door on `::` takes IPv4, too, unless this machine is set up otherwise."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as door:
        if door.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            pytest.skip("IPv6 alone is this machine's default")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (problem,) = http_ports_are_free(subject(host="::", port=port, key_file="k"))
        assert f":::{port} cannot be listened on: Address already in use at " in str(problem)


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("ipc", ""),
        ("tcp://127.0.0.1:0", ""),
        ("tcp://127.0.0.1:65536", '"tcp://127.0.0.1:65536" is no address of a door'),
        ("tcp://::1:9000", '"tcp://::1:9000" is no address of a door'),
        ("127.0.0.1:9000", '"127.0.0.1:9000" is no address of a door'),
    ],
)
def test_the_door_of_guests_has_an_address(listen: str, told: str) -> None:
    found = [str(each) for each in guests_find_a_door(guests(listen))]
    assert len(found) == bool(told)
    assert all(each.startswith(told) for each in found)


def test_a_door_of_guests_that_cannot_listen_is_told_before_anything_starts() -> None:
    """Its actor would die when all else has started, and take the run along."""
    with bound("127.0.0.1") as other:
        place = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        (problem,) = guests_door_is_free(guests(place))
        assert f"{place} cannot be listened on: Address already in use at $." in str(problem)
    assert list(guests_door_is_free(guests(place))) == []
    no_name = chr(233) * 80
    (problem,) = guests_door_is_free(guests(f"tcp://{no_name}:0"))
    assert "cannot be listened on: no machine can have that name" in str(problem)
    for another_check_s in ("ipc", "127.0.0.1:9000"):
        assert list(guests_door_is_free(guests(another_check_s))) == []


def guests(listen: str) -> Subject:
    table = {"guests": {"listen": listen}}
    return Subject(decode({"run": {"name": "tiny", "steps": 1}, "actors": table}), MACHINE)
