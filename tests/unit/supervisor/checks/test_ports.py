"""Ports that a topology names: two doors of one run do not get along at one of them."""

from __future__ import annotations

from typing import Any

import pytest
from unit.supervisor.checks.test_files import subject

from milepost.configs.problem import Problem
from milepost.supervisor.checks.ports import ports_are_apart

PAGE = {"prometheus": {"port": 9000}}


def found(
    http: dict[str, Any] | None = None,
    listen: str = "ipc",
    replicas: int = 1,
    tracking: dict[str, Any] = PAGE,
) -> list[str]:
    session = {"replicas": replicas} | ({} if http is None else {"http": http})
    actors = {"session": session, "guests": {"listen": listen}}
    checked = subject(actors=actors, tracking=tracking)
    return [str(each) for each in ports_are_apart(checked) if isinstance(each, Problem)]


@pytest.mark.parametrize(
    ("http", "listen", "replicas"),
    [
        (None, "ipc", 1),
        ({}, "tcp://127.0.0.1:0", 1),
        ({"port": 9001}, "tcp://127.0.0.1:9003", 2),
        ({"port": 9000, "host": "10.0.0.1"}, "tcp://10.0.0.2:9000", 1),
        ({"port": 8999}, "ipc", 1),
        ({"port": 9001}, "nonsense", 1),
        ({"port": 9100, "host": "::1"}, "tcp://0.0.0.0:9100", 1),
    ],
)
def test_doors_with_ports_of_their_own_are_left_alone(
    http: dict[str, Any] | None, listen: str, replicas: int
) -> None:
    assert found(http, listen, replicas) == []


@pytest.mark.parametrize(
    ("http", "listen", "replicas", "told"),
    [
        ({"port": 9000}, "ipc", 1, "port 9000 is that of $.tracking.prometheus.port, too at $.a"),
        ({"port": 9000, "host": "localhost"}, "ipc", 1, "port 9000 is that of $.tracking."),
        ({"port": 9000, "host": "0.0.0.0"}, "ipc", 1, "port 9000 is that of $.tracking."),
        ({"port": 8997}, "ipc", 4, "port 9000 is that of $.tracking.prometheus.port, too"),
        ({"port": 9001}, "tcp://127.0.0.1:9002", 2, "port 9002 is that of $.actors.session.http"),
        (None, "tcp://0.0.0.0:9000", 1, "port 9000 is that of $.tracking.prometheus.port, too"),
        ({"port": 9100, "host": "::"}, "tcp://127.0.0.1:9100", 1, "port 9100 is that of $.actors."),
    ],
)
def test_a_port_that_two_doors_want_is_told(
    http: dict[str, Any] | None, listen: str, replicas: int, told: str
) -> None:
    """Each alone finds it free before the run; then the second one dies, and the run with it."""
    (problem,) = found(http, listen, replicas)
    assert problem.startswith(told)


def test_without_a_page_its_port_is_nobody_s() -> None:
    assert found({"port": 9000}, tracking={}) == []
