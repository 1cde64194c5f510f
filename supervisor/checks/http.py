"""Checks of the doors that others come through: HTTP of session actors, and that of guests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from milepost.actors.guests.address import InvitationError, read_tcp
from milepost.actors.session.validation import SERVER_FIELDS
from milepost.configs.actors import HttpConfig
from milepost.configs.problem import Problem
from milepost.supervisor.checks.check import Finding, Subject
from milepost.supervisor.sockets import bound

WHERE: Final = "$.actors.session.http"
PORT_MAX: Final = 65535
OF_TOOL: Final = ("description", "function", "input_schema", "name", "parameters", "type")
DROPPED: Final = re.compile(r"(tools\.)?[^.\s]+")
NEEDED: Final = frozenset(
    {"input", "messages", "model", "stream", "system", "tools", *(f"tools.{x}" for x in OF_TOOL)}
)


def http_door_is_safe(subject: Subject) -> Iterator[Finding]:
    """A door that strangers find open, or that the run's own agents cannot find."""
    session = subject.topology.actors.session
    if session is None or session.http is None:
        return
    http = session.http
    if subject.topology.algorithm.estimator == "sft":
        yield Problem("a supervised run has no chats", WHERE, "remove the table")
    yield from _reach(http)
    if http.port and http.port + session.replicas - 1 > PORT_MAX:
        what = f"port = {http.port} and {session.replicas} replicas need ports above {PORT_MAX}"
        yield Problem(what, f"{WHERE}.port", "set 0, or a lower one")
    yield from _dropped(http)


def http_key_is_readable(subject: Subject) -> Iterator[Finding]:
    """A session actor that dies at start for want of its key, or opens to an empty one."""
    session = subject.topology.actors.session
    if session is None or session.http is None or not session.http.key_file:
        return
    where, path = f"{WHERE}.key_file", Path(session.http.key_file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield Problem(f"{path} cannot be read: {error}", where, "write the key into it")
        return
    if not text.strip():
        yield Problem(f"{path} is empty", where, "write the key into it")


def http_ports_are_free(subject: Subject) -> Iterator[Finding]:
    """A session actor that dies when all else has started, since somebody else listens there."""
    session = subject.topology.actors.session
    if session is None or session.http is None or not session.http.port:
        return
    host, first = session.http.host, session.http.port
    for port in range(first, first + session.replicas):
        try:
            bound(host, port).close()  # as the session actor will
        except OSError as error:
            what = f"{host}:{port} cannot be listened on: {error.strerror}"
            remedy = "set another one, or 0 for any that is free"
            yield Problem(what, f"{WHERE}.port", remedy)


def guests_door_is_free(subject: Subject) -> Iterator[Finding]:
    """A run that ends when all else has started, since its guests' door cannot listen."""
    guests = subject.topology.actors.guests
    if guests is None or guests.listen == "ipc":
        return
    try:
        host, port = read_tcp(guests.listen)
        bound(host, port).close()  # as the actor of guests will
    except InvitationError:
        return  # another check names it
    except OSError as error:
        what = f"{guests.listen} cannot be listened on: {error.strerror}"
        yield Problem(what, "$.actors.guests.listen", "name an address of this machine, and a port")


def _reach(http: HttpConfig) -> Iterator[Finding]:
    if http.key_file and not http.free_sessions:
        what = "a key for sessions that nobody may open"
        yield Problem(what, f"{WHERE}.key_file", "remove it, or set free_sessions = true")
    if http.advertised_host and not _is_host(http.advertised_host):
        what = f'advertised_host "{http.advertised_host}" is no name of a machine'
        yield Problem(what, f"{WHERE}.advertised_host", "set a name or an IP address alone")
    if http.host == "localhost":
        return
    try:
        address = ip_address(http.host)
    except ValueError:
        what = f'host "{http.host}" is no address of an interface'
        remedy = 'set an IP address; "127.0.0.1" is this machine alone'
        yield Problem(what, f"{WHERE}.host", remedy)
        return
    if address.is_unspecified and not http.advertised_host:
        what = f"agents would be told to reach {http.host}, which is no place"
        yield Problem(what, f"{WHERE}.advertised_host", "set the name they know this machine by")
    if not address.is_loopback and http.free_sessions and not http.key_file:
        what = f"everybody who reaches {http.host} may open sessions and use the engines"
        remedy = "set free_sessions = false, or a key_file"
        yield Problem(what, f"{WHERE}.free_sessions", remedy)


def _is_host(text: str) -> bool:
    """Whether it may stand in the address that agents get."""
    if re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})", text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _dropped(http: HttpConfig) -> Iterator[Finding]:
    for index, name in enumerate(http.dropped_fields):
        if name in SERVER_FIELDS:
            what = f"{name} is the server's, and is refused whatever the topology says"
        elif name in NEEDED:
            what = f"{name} is the request itself"
        elif not DROPPED.fullmatch(name):
            what = f'"{name}" names no field: a whole one of requests, or `tools.NAME` of each tool'
        else:
            continue
        yield Problem(what, f"{WHERE}.dropped_fields[{index}]", "remove it")
