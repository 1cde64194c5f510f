"""Bodies of older minor versions, brought up one step at a time.

A step belongs to the version it leads to. It has one function for each message type that the
version changed; other types pass through untouched. A new field needs no step: it has a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from milepost.messages.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Upgrade:
    """From the version before `to` to `to`."""

    to: tuple[int, int]
    bodies: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]
    """For each changed message type: the old body to the new one."""


UPGRADES: Final[tuple[Upgrade, ...]] = ()
"""In order of version. Protocol 1.0 is the first, so there is nothing to bring up yet."""


def upgrade(
    type_name: str, body: Any, version: tuple[int, int], steps: tuple[Upgrade, ...]
) -> dict[str, Any]:
    """The body as the newest version has it.

    Raises:
        ProtocolError: the body is no map.
    """
    if not isinstance(body, dict):
        raise ProtocolError(f"{type_name}: body is a {type(body).__name__}, not a map")
    newest: dict[str, Any] = body
    for step in steps:
        change = step.bodies.get(type_name)
        if version < step.to and change is not None:
            newest = change(newest)
    return newest
