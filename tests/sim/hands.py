"""Long work in simulated runs: threads of actors, and what came of it on its way to the core.

A real hand is a thread or a task. Each does its works in order; of two hands, nobody knows which is
faster. And what a hand has done is heard of a while after it was done, on a way of its own: until
then messages, timers and other hands' results come first, and the process may die.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.effects import Work, WorkDone
from milepost.actors.engine.interface import EpochError

if TYPE_CHECKING:
    from sim.links import Actor


@dataclass(slots=True, eq=False, repr=False)
class Hand:
    """One thread of one actor."""

    actor: Actor
    name: str
    works: deque[Work] = field(default_factory=deque)
    ended: deque[WorkDone] = field(default_factory=deque)
    """Done, and the core has not heard of it."""

    @property
    def rank(self) -> tuple[int, str]:
        """Among all hands of the run."""
        return self.actor.rank, self.name


@dataclass(slots=True)
class Hands:
    """All hands that have something to do or to tell.

    Attributes:
        at_once: True: whatever is done is heard of at once.
    """

    at_once: bool = True
    doing: list[Hand] = field(default_factory=list)
    """Those with work, in order."""
    telling: list[Hand] = field(default_factory=list)
    """Those that have done some, likewise."""

    def order(self, actor: Actor, work: Work) -> None:
        """A core orders work; as in a real process, no two under one key at a time."""
        assert work.key not in actor.keys, f"{actor.name}: work {work.key} is already being done"
        actor.keys.add(work.key)
        name = actor.hand_of(work)
        hand = actor.hands.get(name)
        if hand is None:
            hand = actor.hands[name] = Hand(actor, name)
        if not hand.works:
            insort(self.doing, hand, key=_rank)
        hand.works.append(work)

    def do(self, hand: Hand) -> WorkDone | None:
        """The next work of a hand is done; its result, when it is heard of at once."""
        work, actor = hand.works.popleft(), hand.actor
        if not hand.works:
            self.doing.remove(hand)
        assert actor.perform is not None, f"{actor.name} has no hands for {work}"
        try:
            done = WorkDone(work.key, actor.perform(work))
        except (OSError, EpochError) as error:
            done = WorkDone(work.key, None, str(error))
        if self.at_once:
            self._heard(hand, done)
            return done
        if not hand.ended:
            insort(self.telling, hand, key=_rank)
        hand.ended.append(done)
        return None

    def tell(self, hand: Hand) -> WorkDone:
        """The core hears of the oldest that this hand has done."""
        done = hand.ended.popleft()
        if not hand.ended:
            self.telling.remove(hand)
        self._heard(hand, done)
        return done

    def die(self, actor: Actor) -> None:
        """What was not done never is; what was done is heard of by nobody."""
        actor.hands.clear()
        actor.keys.clear()
        self.doing = [hand for hand in self.doing if hand.actor is not actor]
        self.telling = [hand for hand in self.telling if hand.actor is not actor]

    def _heard(self, hand: Hand, done: WorkDone) -> None:
        hand.actor.keys.discard(done.key)
        if not hand.works and not hand.ended:
            del hand.actor.hands[hand.name]


def _rank(hand: Hand) -> tuple[int, str]:
    return hand.rank
