"""Gives shared memory back to the peers that lent it, when nothing here refers to it any more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from milepost.messages.bus.delivery import RELEASED_MAX, pack_released


class Origin(Struct, frozen=True):
    """Where a message with shared memory came from: an answer of `peer`, or a link's `route`."""

    message_id: int
    peer: str = ""
    route: bytes = b""


class Returning:
    """Collects what is given back, and sends it once for each turn of the loop.

    Args:
        loop: the event loop.
        to_peer: sends a release on our link to this peer.
        to_route: sends a release to this link of our mailbox.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        to_peer: Callable[[str, bytes], None],
        to_route: Callable[[bytes, bytes], None],
    ) -> None:
        self._loop = loop
        self._to_peer = to_peer
        self._to_route = to_route
        self._origins: deque[Origin] = deque()
        self._closed = False

    def give_back(self, origin: Origin) -> None:
        """The message of this origin is not read any more. Called on any thread."""
        self._origins.append(origin)
        if not self._closed:
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        together: dict[tuple[str, bytes], list[int]] = {}
        while self._origins:
            origin = self._origins.popleft()
            together.setdefault((origin.peer, origin.route), []).append(origin.message_id)
        if self._closed:
            return
        for (peer, route), ids in together.items():
            for start in range(0, len(ids), RELEASED_MAX):
                body = pack_released(ids[start : start + RELEASED_MAX])
                if peer:
                    self._to_peer(peer, body)
                else:
                    self._to_route(route, body)

    def close(self) -> None:
        """Send nothing more: a lender whose borrower is gone removes its memory itself."""
        self._closed = True
