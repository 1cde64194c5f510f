"""Which life of each peer a core has heard of: of a death before any word of the next life.

The supervisor says that a peer was started again, and that peer speaks up itself. These are two
links, and nobody keeps order between them: a core that is told of the death second would take the
living for the dead, and wait for a word that it has had. Nor is it told of deaths before the first
life that it dealt with, once that is known: it has lost nothing by them.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from milepost.messages.bus import Incoming
from milepost.messages.supervisor import PeerRestarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from milepost.messages.shared import Message


class Loop(Protocol):
    """Calls a function in the next turn of the event loop, after what was asked for before."""

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Not now."""
        ...


class Lives:
    """The peers of one core."""

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}
        """Peer -> its newest life that said something."""
        self._told: dict[str, int] = {}
        """Peer -> its newest life that the core was told of."""

    def news(
        self, source: str, incarnation: int, message: Message, *, first: bool = False
    ) -> PeerRestarted | None:
        """What the core must be told first, or instead; None: nothing.

        Args:
            source: who speaks.
            incarnation: its life.
            message: what it says. If that is the news, the result is this very message, once.
            first: it answers a question of this core, which no life before has taken any of.
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
        # Even before a first word: told of that death second, a core would take this life for dead.
        if incarnation <= self._told.get(source, 0):
            return None
        self._told[source] = incarnation
        # It died before this core gave it anything, so what it was asked lives: nothing is lost,
        # and the supervisor, who may say so second, would speak of a death that is past.
        if known is None and first:
            return None
        return PeerRestarted(actor=source, incarnation=incarnation)


class InOrder:
    """What a core is told of its peers: the news of a death before any word of the next life.

    Args:
        loop: the event loop of the core.
        peer_is_now: of the bus. Questions that a dead incarnation took fail now, not at their
            deadline; one turn of the loop brings that to the core ahead of the news itself.
        has_died: of the bus. Whether a life before the present one has taken anything of this core.
        tell: takes the news, as a message of the supervisor's.
    """

    def __init__(
        self,
        loop: Loop,
        peer_is_now: Callable[[str, int], None],
        has_died: Callable[[str], bool],
        tell: Callable[[Incoming], None],
    ) -> None:
        self._loop, self._peer_is_now, self._has_died = loop, peer_is_now, has_died
        self._tell = tell
        self._lives = Lives()
        self._late: deque[list[Callable[[], None]]] = deque()
        """For each news that waits for its turn: it, and all that was said since."""

    def take(
        self, incoming: Incoming, deliver: Callable[[Incoming], None], *, answers: bool = False
    ) -> None:
        """Deliver a message or an answer, now or right after what must be told first."""
        message = incoming.message
        source, incarnation = incoming.source, incoming.source_incarnation
        first = answers and not self._has_died(source)
        news = self._lives.news(source, incarnation, message, first=first)
        if news is None:
            if isinstance(message, PeerRestarted):
                return
            if self._late:
                self._late[-1].append(partial(deliver, incoming))
            else:
                deliver(incoming)
            return
        self._peer_is_now(news.actor, news.incarnation)
        if news is message:
            self._late.append([partial(deliver, incoming)])
        else:
            told = Incoming("supervisor", 0, 0, incoming.message_id, news)
            self._late.append([partial(self._tell, told), partial(deliver, incoming)])
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        for deliver in self._late.popleft():
            deliver()
