"""What is on its way: one FIFO for each ordered pair of actors, and which of them hold mail."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sim.hands import Hand

from milepost.actors.effects import Answered, Core, Event, Received, Unanswered, Work
from milepost.actors.lives import Lives
from milepost.messages.supervisor import PeerRestarted

Pair: TypeAlias = tuple[str, str]


@dataclass(slots=True, eq=False, repr=False)
class Actor:
    """One process."""

    name: str
    make: Callable[[int], Core]
    perform: Callable[[Work], object] | None = None
    is_stubborn: bool = False
    """What it tells is never taken back at a deadline: a stand-in has no need to say it again."""
    rank: int = 0
    """Among the actors of the run."""
    incarnation: int = 0
    core: Core | None = None
    hand_of: Callable[[Work], str] = lambda _: ""
    """Which of its threads does a work."""
    hands: dict[str, Hand] = field(default_factory=dict)
    """Those with something to do or to tell."""
    keys: set[str] = field(default_factory=set)
    """Of works that the core has not heard the end of."""
    asks: dict[int, tuple[str, str, bool]] = field(default_factory=dict)
    """Number of an open question -> key, to whom, whether that one has taken it."""
    timers: dict[str, int] = field(default_factory=dict)
    """Key -> number of the wake that counts."""
    links: dict[str, Link] = field(default_factory=dict)
    """By whom it writes to."""
    lives: Lives = field(default_factory=Lives)
    takers: dict[str, int] = field(default_factory=dict)
    """Peer -> its first life that took anything of this one."""

    def in_order(self, source: str, mail: Mail) -> list[Event]:
        """What it is told when this comes, as by the shell of an actor."""
        event = mail.event
        if not isinstance(event, Received | Answered):
            return [event]
        said, is_answer = event.message, isinstance(event, Answered)
        first = is_answer and self.takers.get(source, mail.incarnation) >= mail.incarnation
        news = self.lives.news(source, mail.incarnation, said, first=first)
        if news is None:
            return [] if isinstance(said, PeerRestarted) else [event]
        return [event] if news is said else [Received("supervisor", news), event]


@dataclass(slots=True, eq=False)
class Mail:
    """One thing on a link."""

    event: Event
    number: int
    incarnation: int = 0
    """Of the sender."""
    key: str = ""
    is_ask: bool = False
    confirm: bool = False
    answers: int = 0
    """Number of the question this answers."""

    @property
    def is_said(self) -> bool:
        """Not news of the bus's own."""
        return not isinstance(self.event, Unanswered)


@dataclass(slots=True, eq=False, repr=False)
class Link:
    """From one actor to another."""

    rank: int
    source: Actor
    to: Actor
    mail: deque[Mail] = field(default_factory=deque)
    num_refused: int = 0
    """Messages that found no room and whose sender has not heard of it yet."""
    refusals: dict[str, list[float]] = field(default_factory=dict)
    """Key -> when it found no room, within the last second."""

    @property
    def pair(self) -> Pair:
        return self.source.name, self.to.name

    @property
    def num_untaken(self) -> int:
        """Messages; answers and receipts take no room."""
        return sum(type(mail.event) is Received for mail in self.mail)

    def refuse(self, key: str, now_s: float) -> int:
        """There is no room for this message; how often there was none for it in a second."""
        self.num_refused += 1
        if not key:
            return 1  # nobody says it again
        times = [at_s for at_s in self.refusals.get(key, ()) if at_s > now_s - 1.0]
        self.refusals[key] = [*times, now_s]
        return len(times) + 1


@dataclass(slots=True)
class Links:
    """Every link that was ever used, in the order of their first use."""

    by_pair: dict[Pair, Link] = field(default_factory=dict)
    ready: list[Link] = field(default_factory=list)
    """Those with mail, in the same order."""
    _ranks: list[int] = field(default_factory=list)
    """Their ranks."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self.by_pair.values())

    def __bool__(self) -> bool:
        """Whether anything is on its way."""
        return bool(self.ready)

    def between(self, source: Actor, to: Actor) -> Link:
        link = source.links.get(to.name)
        if link is None:
            link = source.links[to.name] = Link(len(self.by_pair), source, to)
            self.by_pair[link.pair] = link
        return link

    def post(self, link: Link, mail: Mail) -> None:
        if not link.mail:
            at = bisect_left(self._ranks, link.rank)
            self._ranks.insert(at, link.rank)
            self.ready.insert(at, link)
        link.mail.append(mail)

    def take(self, link: Link) -> Mail:
        mail = link.mail.popleft()
        if not link.mail:
            at = bisect_left(self._ranks, link.rank)
            del self.ready[at], self._ranks[at]
        return mail

    def changed(self) -> None:
        """Mail was taken out of the middle somewhere."""
        self.ready = [link for link in self.by_pair.values() if link.mail]
        self._ranks = [link.rank for link in self.ready]
