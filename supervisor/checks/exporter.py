"""Checks of the page that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from milepost.configs.problem import Problem
from milepost.supervisor.checks.check import Finding, Subject
from milepost.supervisor.sockets import bound

WHERE: Final = "$.tracking.prometheus"


def metrics_are_private(subject: Subject) -> Iterator[Finding]:
    """A page that tells everybody in the network what is trained here, and how well."""
    config = subject.topology.tracking.prometheus
    if config is None:
        return
    try:
        address = ip_address(config.host)
    except ValueError:
        what = f'host "{config.host}" is no address of an interface'
        remedy = 'set an IP address; "127.0.0.1" is this machine alone'
        yield Problem(what, f"{WHERE}.host", remedy)
        return
    if not address.is_loopback and not config.key_file:
        what = f"everybody who reaches {config.host} may read the metrics"
        yield Problem(what, f"{WHERE}.key_file", "set one, or listen on 127.0.0.1")


def exporter_can_start(subject: Subject) -> Iterator[Finding]:
    """A scrape that never finds the run, which nobody misses until it is over."""
    config = subject.topology.tracking.prometheus
    if config is None:
        return
    if config.key_file:
        yield from _key(Path(config.key_file))
    try:
        bound(config.host, config.port).close()  # as the run itself will
    except OSError as error:
        what = f"{config.host}:{config.port} cannot be listened on: {error.strerror}"
        yield Problem(what, f"{WHERE}.port", "set another one")


def _key(path: Path) -> Iterator[Finding]:
    where = f"{WHERE}.key_file"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield Problem(f"{path} cannot be read: {error}", where, "write the key into it")
        return
    if not text.strip():
        yield Problem(f"{path} is empty", where, "write the key into it")
