"""The simulated network and clock: real cores, every delivery a choice.

One FIFO for each ordered pair of actors, as ZeroMQ keeps order inside a pipe and promises nothing
between pipes. What the bus promises is kept here: a message arrives once or its sender is told by
name; what a dead actor had not taken goes to its next incarnation; what it had taken is gone with
it, and questions it had taken fail; a full link refuses, and says so a second later.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import TypeAlias

from sim.choosers import Chooser
from sim.hands import Hand, Hands
from sim.links import Actor, Link, Links, Mail, Pair
from sim.words import describe

from milepost.actors.effects import (
    Answered,
    Ask,
    Core,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
)
from milepost.actors.lives import Lives
from milepost.messages.bus.outbound import REFUSED_S
from milepost.messages.shared import Message

STEP_S = 0.001
TELL_S = 60.0
ASK_S = 60.0
REFUSED_MAX = 6
"""Refusals of one word in a second that are no spinning yet."""


class ActorFailed(AssertionError):
    """A core ordered Fail."""


class Due(Enum):
    """Why a timer was set."""

    WAKE = auto()
    TELL = auto()
    ASK = auto()
    REFUSED = auto()


Timer: TypeAlias = tuple[float, int, Actor, int, Due, str, str]
"""When, number (never the same twice), whose, in which incarnation, why, key, to whom."""


@dataclass(slots=True)
class Network:
    """Actors, links, timers, time."""

    chooser: Chooser
    now_s: float = 0.0
    actors: dict[str, Actor] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    blocked: dict[Pair, float] = field(default_factory=dict)
    """Link -> when it carries again."""
    deaf: dict[str, float] = field(default_factory=dict)
    """Slow consumer -> when it takes something again."""
    full_max: int = 0
    """Messages of one link that nobody took; a further one is refused. 0: no limit."""
    refused_s: float = REFUSED_S
    """How long after that its sender hears of it."""
    num_refused: int = 0
    quick: frozenset[str] = frozenset()
    """Actors whose mail is delivered at once, without a choice. Sound for those that only answer:
    what they do commutes with everything that happens elsewhere."""
    trace: list[str] | None = None
    on_event: Callable[[str, Event], None] | None = None
    on_effect: Callable[[str, Effect], None] | None = None
    num_delivered: int = 0
    hands: Hands = field(default_factory=Hands)
    _all_live: bool = False
    _untaken: set[int] = field(default_factory=set)
    """Numbers of messages on their way that have a deadline."""
    _timers: list[Timer] = field(default_factory=list)
    _calls: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    # ---- life ----------------------------------------------------------------------------

    def add(
        self,
        name: str,
        make: Callable[[int], Core],
        perform: Callable[[Work], object] | None = None,
        *,
        is_stubborn: bool = False,
        hand_of: Callable[[Work], str] = lambda _: "",
    ) -> None:
        rank = len(self.actors)
        self.actors[name] = Actor(name, make, perform, is_stubborn, rank, hand_of=hand_of)
        self._all_live = False

    def start(self, name: str) -> None:
        actor = self.actors[name]
        actor.core = actor.make(actor.incarnation)
        self._all_live = all(other.core is not None for other in self.actors.values())
        self._say(f"{name} starts, incarnation {actor.incarnation}")
        self._carry_out(actor, actor.core.start(self.now_s))

    def kill(self, name: str, *, keep_sent: Callable[[int], int]) -> None:
        """The process is gone. Of what it sent and nobody took, each link keeps a beginning."""
        actor = self.actors[name]
        self._say(f"{name} dies, incarnation {actor.incarnation}")
        actor.core = None
        self._all_live = False
        self.hands.die(actor)
        actor.asks.clear()
        actor.timers.clear()
        actor.lives, actor.takers = Lives(), {}
        actor.incarnation += 1
        for link in self.links:
            if link.source is actor:
                link.num_refused = 0
                link.refusals.clear()
                kept_sent = keep_sent(len(link.mail) + 1)
                # News that questions failed is the bus's own, not the dead one's.
                news = [mail for mail in list(link.mail)[kept_sent:] if not mail.is_said]
                while len(link.mail) > kept_sent:
                    link.mail.pop()
                link.mail.extend(news)
            if link.to is actor:
                # Answers and receipts were for the dead one.
                kept = [mail for mail in link.mail if isinstance(mail.event, Received)]
                link.mail.clear()
                link.mail.extend(kept)
        self.links.changed()
        for other in self.actors.values():
            for number, (key, to, is_taken) in list(other.asks.items()):
                if to == name and is_taken:
                    del other.asks[number]
                    self._post(actor, other, Unanswered(key, name, "died with the question"))

    def call_at(self, at_s: float, what: Callable[[], None]) -> None:
        """Do something of the simulation's own at a time."""
        heapq.heappush(self._calls, (at_s, self._next(), what))

    # ---- moves ---------------------------------------------------------------------------

    def step(self) -> bool:
        """One move; False when nothing can ever happen again."""
        while True:
            if self._calls:
                self._run_calls()
            links, doing, telling, is_due = self._moves()
            num_links, num_works = len(links), len(doing)
            num_ready = num_links + num_works + len(telling)
            if num_ready or is_due:
                break
            if not self._pass_time():
                return False
        self.now_s += STEP_S
        choice = self.chooser.pick(num_ready + is_due)
        if choice < num_links:
            self._deliver(links[choice])
        elif choice < num_links + num_works:
            hand = doing[choice - num_links]
            if (done := self.hands.do(hand)) is not None:
                self._feed(hand.actor, done)
        elif choice < num_ready:
            hand = telling[choice - num_links - num_works]
            self._feed(hand.actor, self.hands.tell(hand))
        else:
            self._fire()
        return True

    def _moves(self) -> tuple[list[Link], list[Hand], list[Hand], bool]:
        """Links that can carry, hands with work to do and to tell of, whether a timer is due."""
        links, doing, telling = self.links.ready, self.hands.doing, self.hands.telling
        if self.blocked or self.deaf or not self._all_live:
            links = [link for link in links if self._carries(link)]
            if self.blocked and max(self.blocked.values()) <= self.now_s:
                self.blocked.clear()
            if self.deaf and max(self.deaf.values()) <= self.now_s:
                self.deaf.clear()
        if self.quick:
            for link in links:
                if link.to.name in self.quick:
                    return [link], [], [], False
            for hand in doing:
                if f"work of {hand.actor.name}" in self.quick:
                    return [], [hand], [], False
        timers, now_s = self._timers, self.now_s
        is_due = bool(timers) and timers[0][0] <= now_s and self._next_timer_s() <= now_s
        return links, doing, telling, is_due

    def _carries(self, link: Link) -> bool:
        return (
            link.to.core is not None
            and self.blocked.get(link.pair, 0.0) <= self.now_s
            and self.deaf.get(link.to.name, 0.0) <= self.now_s
        )

    def jump(self, seconds: float) -> None:
        """The clock goes on without anything being delivered."""
        self.now_s += seconds

    def _pass_time(self) -> bool:
        """Nothing to do: on to the next thing that has a time."""
        later = (*self.blocked.values(), *self.deaf.values())
        times = [at for at in later if at > self.now_s]
        times += [call[0] for call in self._calls[:1]]
        next_s = min((*times, self._next_timer_s()))
        self.now_s = max(self.now_s, next_s if next_s < inf else self.now_s)
        return next_s < inf

    def _run_calls(self) -> None:
        while self._calls and self._calls[0][0] <= self.now_s:
            heapq.heappop(self._calls)[2]()

    def _deliver(self, link: Link) -> None:
        mail, source, actor = self.links.take(link), link.source, link.to
        event = mail.event
        self.num_delivered += 1
        if type(event) is Received:
            self._untaken.discard(mail.number)
            if mail.incarnation == source.incarnation:
                source.takers.setdefault(actor.name, actor.incarnation)
                if mail.confirm:
                    self._post(actor, source, Taken(mail.key))
            if mail.is_ask and mail.number in source.asks:
                key, _, _ = source.asks[mail.number]
                source.asks[mail.number] = (key, actor.name, True)
        elif mail.answers and actor.asks.pop(mail.answers, None) is None:
            return
        for told in actor.in_order(source.name, mail):
            self._feed(actor, told)

    # ---- timers --------------------------------------------------------------------------

    def _next_timer_s(self) -> float:
        """When the next timer fires that still means something; infinity without one."""
        timers = self._timers
        while timers:
            at_s, number, actor, incarnation, due, key, _ = timers[0]
            if actor.incarnation == incarnation and (
                actor.timers.get(key) == number
                if due is Due.WAKE
                else number in actor.asks
                if due is Due.ASK
                else number in self._untaken
                if due is Due.TELL
                else True
            ):
                return at_s
            heapq.heappop(timers)
        return inf

    def _fire(self) -> None:
        _, number, actor, _, due, key, to = heapq.heappop(self._timers)
        match due:
            case Due.WAKE:
                del actor.timers[key]
                self._feed(actor, Woken(key))
            case Due.ASK:
                self._take_back(actor, to, number)
                del actor.asks[number]
                self._feed(actor, Unanswered(key, to, "no answer before the deadline"))
            case Due.TELL:
                self._take_back(actor, to, number)
                self._feed(actor, Unanswered(key, to, "not taken before the deadline"))
            case Due.REFUSED:
                self._link(actor, to).num_refused -= 1
                self._feed(actor, Unanswered(key, to, "not sent: full", no_room=True))

    def _take_back(self, actor: Actor, to: str, number: int) -> None:
        link = self._link(actor, to)
        waiting = next((mail for mail in link.mail if mail.number == number), None)
        if waiting is not None:
            link.mail.remove(waiting)
            self._untaken.discard(number)
            self.links.changed()

    def _set(self, actor: Actor, at_s: float, number: int, due: Due, key: str, to: str) -> None:
        timer = (at_s, number, actor, actor.incarnation, due, key, to)
        heapq.heappush(self._timers, timer)

    # ---- effects -------------------------------------------------------------------------

    def _feed(self, actor: Actor, event: Event) -> None:
        core = actor.core
        assert core is not None
        if self.trace is not None:
            self._say(f"{actor.name} <- {describe(event)}")
        if self.on_event is not None:
            self.on_event(actor.name, event)
        effects = core.handle(event, self.now_s)
        core.validate()
        if effects:
            self._carry_out(actor, effects)

    def _carry_out(self, actor: Actor, effects: list[Effect]) -> None:
        for effect in effects:
            if self.on_effect is not None:
                self.on_effect(actor.name, effect)
            match effect:
                case Tell() | Ask():
                    self._send(actor, effect)
                case Reply():
                    self._answer(actor, effect)
                case Wake():
                    number = actor.timers[effect.key] = self._next()
                    self._set(actor, effect.at_s, number, Due.WAKE, effect.key, "")
                case Fail():
                    raise ActorFailed(f"{actor.name}: {effect.reason}")
                case _:
                    self.hands.order(actor, effect)

    def _send(self, actor: Actor, effect: Tell | Ask) -> None:
        link, key, number = self._link(actor, effect.to), effect.key, self._next()
        deadline_s = effect.deadline_s or (ASK_S if isinstance(effect, Ask) else TELL_S)
        if self.full_max and not actor.is_stubborn and link.num_untaken >= self.full_max:
            self._refuse(link, key, number, deadline_s)
        elif isinstance(effect, Ask):
            actor.asks[number] = (key, effect.to, False)
            received = Received(actor.name, effect.message, Request(actor.name, number))
            self.links.post(link, Mail(received, number, actor.incarnation, key, is_ask=True))
            self._set(actor, self.now_s + deadline_s, number, Due.ASK, key, effect.to)
        else:
            received = Received(actor.name, effect.message)
            confirm = effect.confirm
            self.links.post(link, Mail(received, number, actor.incarnation, key, confirm=confirm))
            if not actor.is_stubborn:
                self._untaken.add(number)
                self._set(actor, self.now_s + deadline_s, number, Due.TELL, key, effect.to)

    def _refuse(self, link: Link, key: str, number: int, deadline_s: float) -> None:
        """Its sender hears of it a little later; of no more refusals than the link has room."""
        self.num_refused += 1
        times = link.refuse(key, self.now_s)
        said = f"{link.source.name} says {key} to {link.to.name}, whose link is full,"
        assert times <= REFUSED_MAX, f"{said} {times} times within a second"
        later_s = min(deadline_s, self.refused_s) if link.num_refused <= self.full_max else 0.0
        self._set(link.source, self.now_s + later_s, number, Due.REFUSED, key, link.to.name)

    def _answer(self, actor: Actor, reply: Reply) -> None:
        number, asker = reply.request.message_id, self.actors[reply.request.source]
        if number in asker.asks:
            event = Answered(asker.asks[number][0], actor.name, reply.message)
            answer = Mail(event, self._next(), actor.incarnation, answers=number)
            self.links.post(self.links.between(actor, asker), answer)

    def _link(self, actor: Actor, to: str) -> Link:
        assert to in self.actors, f"{actor.name} writes to {to}, who is not in this run"
        return self.links.between(actor, self.actors[to])

    def _post(self, source: Actor, to: Actor, event: Event) -> None:
        mail = Mail(event, self._next(), source.incarnation)
        self.links.post(self.links.between(source, to), mail)

    def tell(self, source: str, to: str, message: Message) -> None:
        """Say something on behalf of an actor outside of the simulation (the supervisor)."""
        self._post(self.actors[source], self.actors[to], Received(source, message))

    def ask(self, source: str, to: str, message: Message) -> None:
        """Ask something on behalf of an actor, e.g. Drain; the answer goes to its core."""
        asker, number = self.actors[source], self._next()
        asker.asks[number] = (type(message).__name__, to, False)
        received = Received(source, message, Request(source, number))
        mail = Mail(received, number, asker.incarnation, is_ask=True)
        self.links.post(self.links.between(asker, self.actors[to]), mail)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _say(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_s:9.3f}  {line}")
