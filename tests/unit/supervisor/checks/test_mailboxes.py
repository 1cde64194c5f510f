"""The checks of places and transports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from milepost.configs.load import decode
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.check import Finding
from milepost.supervisor.checks.limits import system_limits_agree
from milepost.supervisor.checks.mailboxes import host_is_ours, place_exists, tcp_is_private

MACHINE = Machine(
    disk_free_bytes=1 << 40,
    writable=True,
    shared_memory_free_bytes=1 << 40,
    memory_available_bytes=1 << 40,
    open_files_max=1 << 20,
    temporary_folder="/tmp",
    requirements=(),
    asserts=True,
    curve=True,
)


def subject(machine: Machine = MACHINE, **system: Any) -> Subject:
    return Subject(decode({"run": {"name": "tiny", "steps": 1}, "system": system}), machine)


def words(found: list[Finding]) -> list[str]:
    return [str(one) for one in found]


@pytest.mark.parametrize("place", ["ssh", "slurm", "kubernetes"])
def test_a_place_that_is_still_to_come_is_refused_by_name(place: str) -> None:
    """Nobody waits for processes that nothing starts."""
    (problem,) = words(list(place_exists(subject(place=place))))
    assert problem == (
        f'processes cannot be started at "{place}" yet at $.system.place, set "local"'
    )
    assert list(place_exists(subject())) == []


def test_a_place_that_nobody_knows_is_refused() -> None:
    (problem,) = words(list(place_exists(subject(place="moon"))))
    assert problem.startswith('nothing is known of a place "moon"')


def test_tcp_without_encryption_is_refused() -> None:
    """A libzmq without CURVE would bind a socket that anybody may write to."""
    open_to_all = replace(MACHINE, curve=False)
    (problem,) = words(list(tcp_is_private(subject(open_to_all, transport="tcp"))))
    assert problem.startswith("libzmq was built without CURVE, so tcp would be open to everybody")
    assert list(tcp_is_private(subject(transport="tcp"))) == []
    assert list(tcp_is_private(subject(open_to_all))) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", ""])
def test_tcp_needs_one_address_that_peers_connect_to(host: str) -> None:
    tables: dict[str, Any] = {"transport": "tcp", "host": host}
    (problem,) = words(list(tcp_is_private(subject(**tables))))
    assert "is every address of this machine, and peers need one at $.system.host" in problem
    assert list(host_is_ours(subject(**tables))) == [], "one problem is told once"


def test_a_host_that_is_not_this_machine_is_refused() -> None:
    assert list(host_is_ours(subject(transport="tcp"))) == []
    (problem,) = words(list(host_is_ours(subject(transport="tcp", host="192.0.2.1"))))
    assert problem.startswith('nobody can listen at host = "192.0.2.1": ')


def test_a_host_without_tcp_has_no_effect_and_is_refused() -> None:
    (problem,) = words(list(host_is_ours(subject(host="192.0.2.1"))))
    assert problem.startswith('host = "192.0.2.1" has no effect with transport = "ipc"')


def test_contents_for_a_recorder_that_is_turned_off_are_refused() -> None:
    """Who wants to replay a run must not find out afterwards that nothing was recorded."""
    given = subject(recorder={"enabled": False, "payloads": True})
    (problem,) = system_limits_agree(given)
    assert "payloads = true, and the recorder that would keep them is turned off" in str(problem)
    assert list(system_limits_agree(subject(recorder={"payloads": True}))) == []
