"""Check of the ports that one run asks for by number: each is for one door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations

from milepost.actors.guests.address import InvitationError, read_tcp
from milepost.configs.problem import Problem
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Subject


@dataclass(frozen=True, slots=True)
class _Door:
    where: str
    host: str
    ports: range

    def meets(self, other: _Door) -> int:
        """The first port that both want; 0 when there is none."""
        if not (self.host == other.host or _covers(self, other) or _covers(other, self)):
            return 0
        low, high = max(self.ports[0], other.ports[0]), min(self.ports[-1], other.ports[-1])
        return low if low <= high else 0


def ports_are_apart(subject: Subject) -> Iterator[Finding]:
    """An actor that dies when all else has started: another door of the run has its port."""
    for one, other in combinations(_doors(subject.topology), 2):
        if port := one.meets(other):
            what = f"port {port} is that of {one.where}, too"
            yield Problem(what, other.where, "set another one")


def _doors(topology: Topology) -> Iterator[_Door]:
    """Those with a port by number; a free one is nobody else's."""
    prometheus, session = topology.tracking.prometheus, topology.actors.session
    guests = topology.actors.guests
    if prometheus is not None:
        ports = range(prometheus.port, prometheus.port + 1)
        yield _Door("$.tracking.prometheus.port", prometheus.host, ports)
    if session is not None and session.http is not None and session.http.port:
        first, host = session.http.port, session.http.host
        ports = range(first, first + session.replicas)
        host = "127.0.0.1" if host == "localhost" else host
        yield _Door("$.actors.session.http.port", host, ports)
    if guests is not None and guests.listen != "ipc":
        try:
            host, port = read_tcp(guests.listen)
        except InvitationError:
            return  # another check names it
        if port:
            yield _Door("$.actors.guests.listen", host, range(port, port + 1))


def _covers(one: _Door, other: _Door) -> bool:
    """Whether the address of `one` stands for that of `other`, too: `::` for all, `0.0.0.0` not."""
    try:
        wide = ip_address(one.host)
        if not wide.is_unspecified:
            return False
        return wide.version == 6 or ip_address(other.host).version == 4
    except ValueError:
        return False
