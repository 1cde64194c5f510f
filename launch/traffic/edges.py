"""Edges between actors as a person writes them: `session-0 -> buffer`, `agent-* <-> session-0`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.suggest import nearest

EVERYBODY: Final = "*"
_FORM: Final = re.compile(r"\s*([\w*?\[\]-]+)\s*(<?->)\s*([\w*?\[\]-]+)\s*")


class Edge(Struct, frozen=True, kw_only=True):
    """From whom to whom; `*` and `?` in a name stand for anything."""

    sender: str
    receiver: str
    both_ways: bool
    """Also what the receiver sends to the sender."""


class Spot(Struct, frozen=True, kw_only=True):
    """Where one tap sits: in the process of `actor`."""

    actor: str
    peers: str
    sent: bool
    received: bool


def parse_edge(text: str) -> Edge:
    """The edge that these words mean.

    Raises:
        ConfigError: they mean none.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        remedy = "write it as 'session-0 -> buffer', 'agent-* <-> session-0' or '* -> buffer'"
        raise ConfigError([Problem(f"`{text}` is no edge", "EDGE", remedy)])
    sender, arrow, receiver = found.groups()
    return Edge(sender=sender, receiver=receiver, both_ways=arrow == "<->")


def spots_of(edge: Edge, names: Sequence[str]) -> Iterator[Spot]:
    """Where to tap, so that each message of the edge is copied once.

    At the senders when they are named, since there a message is seen before it can be lost; at the
    receivers when everybody sends.

    Args:
        edge: what is wanted.
        names: of every actor and of the supervisor.

    Raises:
        ConfigError: nobody has such a name.
    """
    for name in (edge.sender, edge.receiver):
        if not any(fnmatchcase(known, name) for known in names):
            likely = nearest(name, names)
            hint = f"did you mean {likely}" if likely else f"there are {', '.join(names)}"
            raise ConfigError([Problem(f"no actor is called `{name}`", "EDGE", hint)])
    at_receivers = edge.sender == EVERYBODY and edge.receiver != EVERYBODY
    owner, peers = edge.sender, edge.receiver
    if at_receivers:
        owner, peers = peers, owner
    for name in names:
        if fnmatchcase(name, owner):
            yield Spot(
                actor=name,
                peers=peers,
                sent=edge.both_ways or not at_receivers,
                received=edge.both_ways or at_receivers,
            )
