"""Which life of each peer a core has heard of: of a death before any word of the next life.

The supervisor says that a peer was started again, and that peer speaks up itself. These are two
links, and nobody keeps order between them: a core that is told of the death second would take the
living for the dead, and wait for a word that it has had.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from milepost.messages.bus import Incoming
from milepost.messages.supervisor import PeerRestarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from milepost.messages.shared import Message


class Lives:
    """The peers of one core."""

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}
        """Peer -> its newest life that said something."""
        self._told: dict[str, int] = {}
        """Peer -> its newest life that the core was told of."""

    def news(self, source: str, incarnation: int, message: Message) -> PeerRestarted | None:
        """What the core must be told first, or instead; None: nothing.

        Args:
            source: who speaks.
            incarnation: its life.
            message: what it says. If that is the news, the result is this very message, once.
        """
        if isinstance(message, PeerRestarted):
            if message.incarnation <= self._told.get(message.actor, 0):
                return None
            self._told[message.actor] = message.incarnation
            return message
        known = self._heard.get(source)
        if known is not None and incarnation <= known:
            return None
        self._heard[source] = incarnation
        # Of a peer that never said a word, the core knows nothing that could be out of date.
        if known is None or incarnation <= self._told.get(source, 0):
            return None
        self._told[source] = incarnation
        return PeerRestarted(actor=source, incarnation=incarnation)

    async def in_order(
        self, incoming: Incoming, peer_is_now: Callable[[str, int], None]
    ) -> tuple[Incoming, ...]:
        """What the core is told at this message, one after the other.

        Args:
            incoming: the message.
            peer_is_now: of the bus. Questions that a dead incarnation took fail now, not at their
                deadline; one turn of the loop brings that to the core ahead of the news itself.
        """
        message = incoming.message
        news = self.news(incoming.source, incoming.source_incarnation, message)
        if news is None:
            return () if isinstance(message, PeerRestarted) else (incoming,)
        peer_is_now(news.actor, news.incarnation)
        await asyncio.sleep(0)
        if news is message:
            return (incoming,)
        return Incoming("supervisor", 0, 0, incoming.message_id, news), incoming
