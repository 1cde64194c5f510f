"""Checks of where processes are started and how their mailboxes can be reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from milepost.configs.problem import Problem
from milepost.configs.system import SystemConfig
from milepost.supervisor.checks.check import Finding, Subject
from milepost.supervisor.places import PLACES
from milepost.supervisor.sockets import listen

TO_COME: Final = frozenset({"ssh", "slurm", "kubernetes"})
"""Places that have a name and a door (`supervisor.places.Place`), and nobody behind it yet."""


def place_exists(subject: Subject) -> Iterator[Finding]:
    """A run whose processes nobody can start."""
    place = subject.topology.system.place
    if place in PLACES:
        return
    known = " or ".join(f'"{name}"' for name in PLACES)
    what = f'nothing is known of a place "{place}"'
    if place in TO_COME:
        what = f'processes cannot be started at "{place}" yet'
    yield Problem(what, "$.system.place", f"set {known}")


def tcp_is_private(subject: Subject) -> Iterator[Finding]:
    """A mailbox that anybody on the network can read from or write to."""
    system = subject.topology.system
    if system.transport != "tcp":
        return
    if not subject.machine.curve:
        what = "libzmq was built without CURVE, so tcp would be open to everybody"
        yield Problem(what, "$.system.transport", 'set "ipc", or install pyzmq with libsodium')
    if _is_wildcard(system.host):
        what = f'host = "{system.host}" is every address of this machine, and peers need one'
        yield Problem(what, "$.system.host", "name the address that peers connect to")


def host_is_ours(subject: Subject) -> Iterator[Finding]:
    """A supervisor that ends before its first child, since it cannot listen anywhere."""
    system = subject.topology.system
    if system.transport == "ipc":
        if system.host != SystemConfig().host:
            what = f'host = "{system.host}" has no effect with transport = "ipc"'
            yield Problem(what, "$.system.host", 'remove it, or set transport = "tcp"')
        return
    if _is_wildcard(system.host):
        return
    try:
        listen(system.host).close()
    except OSError as error:
        what = f'nobody can listen at host = "{system.host}": {error.strerror or error}'
        yield Problem(what, "$.system.host", "name an address of this machine")


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in {"", "*"}
