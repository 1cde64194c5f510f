"""The checks of the page that Prometheus reads."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.checks.test_files import MACHINE

from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.supervisor.checks import Subject
from milepost.supervisor.checks.exporter import exporter_can_start, metrics_are_private
from milepost.supervisor.sockets import bound


def subject(**prometheus: Any) -> Subject:
    tracking = {"prometheus": prometheus}
    return Subject(decode({"run": {"name": "tiny", "steps": 1}, "tracking": tracking}), MACHINE)


@pytest.mark.parametrize(
    ("prometheus", "where"),
    [
        ({}, []),
        ({"host": "::1"}, []),
        ({"host": "10.0.0.1", "key_file": "k"}, []),
        ({"host": "0.0.0.0"}, ["$.tracking.prometheus.key_file"]),
        ({"host": "monitor"}, ["$.tracking.prometheus.host"]),
    ],
)
def test_nobody_in_the_network_reads_metrics_without_a_key(
    prometheus: dict[str, Any], where: list[str]
) -> None:
    found = metrics_are_private(subject(**prometheus))
    assert [each.where for each in found if isinstance(each, Problem)] == where


def test_a_port_in_use_and_a_key_that_says_nothing_are_found_before_the_run(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    key.write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = list(exporter_can_start(subject(port=port, key_file=str(key))))
    assert str(found[1]) == (
        f"127.0.0.1:{port} cannot be listened on: Address already in use"
        " at $.tracking.prometheus.port, set another one"
    )
    assert [str(each) for each in found if f"{key} is empty" in str(each)]
    assert len(found) == 2


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 alone takes no port of IPv4")
def test_a_page_on_all_addresses_wants_the_port_of_either_kind() -> None:
    """Scrapes over IPv4 would reach whoever has it, and the run would look as if it were silent."""
    with bound("127.0.0.1") as other:
        port = other.getsockname()[1]
        (problem,) = exporter_can_start(subject(host="::", port=port))
        assert f":::{port} cannot be listened on: Address already in use at " in str(problem)
    assert list(exporter_can_start(subject(host="::", port=port))) == []
