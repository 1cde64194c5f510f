"""The simulated network and clock: real cores, every delivery a choice.

One FIFO for each ordered pair of actors, as ZeroMQ keeps order inside a pipe and promises nothing
between pipes. What the bus promises is kept here: a message arrives once or its sender is told by
name; what a dead actor had not taken goes to its next incarnation; what it had taken is gone with
it, and questions it had taken fail.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.choosers import Chooser
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
    WorkDone,
)
from milepost.messages.shared import Message

STEP_S = 0.001
TELL_S = 60.0
ASK_S = 60.0


class ActorFailed(AssertionError):
    """A core ordered Fail."""


@dataclass(slots=True)
class Mail:
    """One thing on a link."""

    event: Event
    number: int
    key: str = ""
    is_ask: bool = False
    confirm: bool = False
    answers: int = 0
    """Number of the question this answers."""
    incarnation: int = 0
    """Of the sender."""


@dataclass(slots=True)
class Actor:
    """One process."""

    name: str
    make: Callable[[int], Core]
    perform: Callable[[Work], object] | None = None
    is_stubborn: bool = False
    """What it tells is never taken back at a deadline: a stand-in has no need to say it again."""
    incarnation: int = 0
    core: Core | None = None
    works: deque[Work] = field(default_factory=deque)
    asks: dict[int, tuple[str, str, bool]] = field(default_factory=dict)
    """Number of an open question -> key, to whom, whether that one has taken it."""


@dataclass(slots=True)
class Network:
    """Actors, links, timers, time."""

    chooser: Chooser
    now_s: float = 0.0
    actors: dict[str, Actor] = field(default_factory=dict)
    links: dict[tuple[str, str], deque[Mail]] = field(default_factory=dict)
    blocked: dict[tuple[str, str], float] = field(default_factory=dict)
    """Link -> when it carries again."""
    deaf: dict[str, float] = field(default_factory=dict)
    """Slow consumer -> when it takes something again."""
    full_max: int = 0
    """Messages of one link that nobody took; a further one fails at once. 0: no limit."""
    num_refused: int = 0
    quick: frozenset[str] = frozenset()
    """Actors whose mail is delivered at once, without a choice. Sound for those that only answer:
    what they do commutes with everything that happens elsewhere."""
    trace: list[str] | None = None
    on_event: Callable[[str, Event], None] | None = None
    on_effect: Callable[[str, Effect], None] | None = None
    num_delivered: int = 0
    _timers: list[tuple[float, int, str, int, str]] = field(default_factory=list)
    _timer_of: dict[tuple[str, str], int] = field(default_factory=dict)
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
    ) -> None:
        self.actors[name] = Actor(name, make, perform, is_stubborn)

    def start(self, name: str) -> None:
        actor = self.actors[name]
        actor.core = actor.make(actor.incarnation)
        self._say(f"{name} starts, incarnation {actor.incarnation}")
        self._carry_out(actor, actor.core.start(self.now_s))

    def kill(self, name: str, *, keep_sent: Callable[[int], int]) -> None:
        """The process is gone. Of what it sent and nobody took, each link keeps a beginning."""
        actor = self.actors[name]
        self._say(f"{name} dies, incarnation {actor.incarnation}")
        actor.core = None
        actor.works.clear()
        actor.asks.clear()
        actor.incarnation += 1
        self._timer_of = {k: v for k, v in self._timer_of.items() if k[0] != name}
        for (source, to), link in self.links.items():
            if source == name:
                kept_sent = keep_sent(len(link) + 1)
                # News that questions failed is the bus's own, not the dead one's.
                news = [mail for mail in list(link)[kept_sent:] if not _is_said(mail)]
                while len(link) > kept_sent:
                    link.pop()
                link.extend(news)
            if to == name:
                # Answers and receipts were for the dead one.
                kept = [mail for mail in link if isinstance(mail.event, Received)]
                link.clear()
                link.extend(kept)
        for other in self.actors.values():
            for number, (key, to, is_taken) in list(other.asks.items()):
                if to == name and is_taken:
                    del other.asks[number]
                    self._post(name, other.name, Unanswered(key, name, "died with the question"))

    def call_at(self, at_s: float, what: Callable[[], None]) -> None:
        """Do something of the simulation's own at a time."""
        self._number += 1
        heapq.heappush(self._calls, (at_s, self._number, what))

    # ---- moves ---------------------------------------------------------------------------

    def step(self) -> bool:
        """One move; False when nothing can ever happen again."""
        self._run_calls()
        moves = self._moves()
        while not moves:
            if not self._pass_time():
                return False
            self._run_calls()
            moves = self._moves()
        self.now_s += STEP_S
        kind, what = moves[self.chooser.pick(len(moves))]
        match kind:
            case "link":
                self._deliver(*what)
            case "work":
                self._work(self.actors[what])
            case _:
                self._wake()
        return True

    def _moves(self) -> list[tuple[str, Any]]:
        actors, blocked, deaf = self.actors, self.blocked, self.deaf
        moves: list[tuple[str, Any]] = [
            ("link", pair)
            for pair, link in self.links.items()
            if link
            and actors[pair[1]].core is not None
            and not (blocked and blocked.get(pair, 0.0) > self.now_s)
            and not (deaf and deaf.get(pair[1], 0.0) > self.now_s)
        ]
        if self.quick:
            for move in moves:
                if move[1][1] in self.quick:
                    return [move]
        for name, actor in self.actors.items():
            if actor.works and actor.core is not None:
                if f"work of {name}" in self.quick:
                    return [("work", name)]
                moves.append(("work", name))
        if self._timers and self._timers[0][0] <= self.now_s:
            moves.append(("timer", None))
        return moves

    def jump(self, seconds: float) -> None:
        """The clock goes on without anything being delivered."""
        self.now_s += seconds

    def _pass_time(self) -> bool:
        """Nothing to do: on to the next thing that has a time."""
        later = (*self.blocked.values(), *self.deaf.values())
        times = [at for at in later if at > self.now_s]
        times += [timer[0] for timer in self._timers[:1]]
        times += [call[0] for call in self._calls[:1]]
        if not times:
            return False
        self.now_s = max(self.now_s, min(times))
        return True

    def _run_calls(self) -> None:
        while self._calls and self._calls[0][0] <= self.now_s:
            heapq.heappop(self._calls)[2]()

    def _deliver(self, source: str, to: str) -> None:
        mail = self.links[source, to].popleft()
        actor = self.actors[to]
        self.num_delivered += 1
        if isinstance(mail.event, Received):
            if mail.confirm and mail.incarnation == self.actors[source].incarnation:
                self._post(to, source, Taken(mail.key))
            if mail.is_ask:
                asker = self.actors[source]
                if mail.number in asker.asks:
                    key, _, _ = asker.asks[mail.number]
                    asker.asks[mail.number] = (key, to, True)
        elif mail.answers:
            if mail.answers not in actor.asks:
                return
            del actor.asks[mail.answers]
        self._feed(actor, mail.event)

    def _work(self, actor: Actor) -> None:
        work = actor.works.popleft()
        assert actor.perform is not None, f"{actor.name} has no hands for {work}"
        try:
            done = WorkDone(work.key, actor.perform(work))
        except OSError as error:
            done = WorkDone(work.key, None, str(error))
        self._feed(actor, done)

    def _wake(self) -> None:
        _, number, name, incarnation, key = heapq.heappop(self._timers)
        actor = self.actors[name]
        if actor.core is None or actor.incarnation != incarnation:
            return
        if key.startswith("\x00"):
            self._expire(actor, key[1:])
        elif self._timer_of.get((name, key)) == number:
            del self._timer_of[name, key]
            self._feed(actor, Woken(key))

    def _expire(self, actor: Actor, what: str) -> None:
        """The deadline of a message: it is taken back if nobody has taken it."""
        kind, number_text, to = what.split("\x00")
        number = int(number_text)
        if kind == "tell" and actor.is_stubborn:
            return
        link = self.links.get((actor.name, to), deque())
        waiting = next((mail for mail in link if mail.number == number), None)
        if waiting is not None:
            link.remove(waiting)
        if kind == "ask" and number in actor.asks:
            key, _, _ = actor.asks.pop(number)
            self._feed(actor, Unanswered(key, to, "no answer before the deadline"))
        elif kind == "tell" and waiting is not None:
            self._feed(actor, Unanswered(waiting.key, to, "not taken before the deadline"))

    # ---- effects -------------------------------------------------------------------------

    def _feed(self, actor: Actor, event: Event) -> None:
        assert actor.core is not None
        if self.trace is not None:
            self._say(f"{actor.name} <- {describe(event)}")
        if self.on_event is not None:
            self.on_event(actor.name, event)
        effects = actor.core.handle(event, self.now_s)
        actor.core.validate()
        self._carry_out(actor, effects)

    def _carry_out(self, actor: Actor, effects: list[Effect]) -> None:
        for effect in effects:
            if self.on_effect is not None:
                self.on_effect(actor.name, effect)
            match effect:
                case Tell(to, _, key) if self._is_full(actor, to):
                    self._post(to, actor.name, Unanswered(key, to, "not sent: the link is full"))
                case Ask(to, _, key) if self._is_full(actor, to):
                    self._post(to, actor.name, Unanswered(key, to, "not sent: the link is full"))
                case Tell(to, message, key, deadline_s, confirm):
                    number = self._post(
                        actor.name, to, Received(actor.name, message), key=key, confirm=confirm
                    )
                    self._arm(actor, "tell", number, to, deadline_s or TELL_S)
                case Ask(to, message, key, deadline_s):
                    number = self._next()
                    received = Received(actor.name, message, Request(actor.name, number))
                    actor.asks[number] = (key, to, False)
                    self._post(actor.name, to, received, number=number, key=key, is_ask=True)
                    self._arm(actor, "ask", number, to, deadline_s or ASK_S)
                case Reply(request, message):
                    self._answer(actor, request, message)
                case Wake(key, at_s):
                    number = self._next()
                    self._timer_of[actor.name, key] = number
                    entry = (at_s, number, actor.name, actor.incarnation, key)
                    heapq.heappush(self._timers, entry)
                case Fail(reason):
                    raise ActorFailed(f"{actor.name}: {reason}")
                case _:
                    actor.works.append(effect)

    def _is_full(self, actor: Actor, to: str) -> bool:
        if not self.full_max or actor.is_stubborn:
            return False
        link = self.links.get((actor.name, to), ())
        is_full = sum(isinstance(mail.event, Received) for mail in link) >= self.full_max
        self.num_refused += is_full
        return is_full

    def _answer(self, actor: Actor, request: Request, message: Message) -> None:
        asker = self.actors[request.source]
        if request.message_id in asker.asks:
            key, _, _ = asker.asks[request.message_id]
            event = Answered(key, actor.name, message)
            self._post(actor.name, request.source, event, answers=request.message_id)

    def _arm(self, actor: Actor, kind: str, number: int, to: str, deadline_s: float) -> None:
        key = f"\x00{kind}\x00{number}\x00{to}"
        entry = (self.now_s + deadline_s, number, actor.name, actor.incarnation, key)
        heapq.heappush(self._timers, entry)

    def _post(self, source: str, to: str, event: Event, **how: Any) -> int:
        assert to in self.actors, f"{source} writes to {to}, who is not in this run"
        number: int = how.pop("number", 0) or self._next()
        link = self.links.get((source, to))
        if link is None:
            link = self.links[source, to] = deque()
        link.append(Mail(event, number, incarnation=self.actors[source].incarnation, **how))
        return number

    def tell(self, source: str, to: str, message: Message) -> None:
        """Say something on behalf of an actor outside of the simulation (the supervisor)."""
        self._post(source, to, Received(source, message))

    def ask(self, source: str, to: str, message: Message) -> None:
        """Ask something on behalf of an actor, e.g. Drain; the answer goes to its core."""
        number = self._next()
        self.actors[source].asks[number] = (type(message).__name__, to, False)
        received = Received(source, message, Request(source, number))
        self._post(source, to, received, number=number, is_ask=True)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _say(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_s:9.3f}  {line}")


def _is_said(mail: Mail) -> bool:
    return not isinstance(mail.event, Unanswered)
