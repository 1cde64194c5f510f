"""A supervisor core with a few children, and shorthands to tell it stories."""

from __future__ import annotations

from milepost.actors.effects import Request
from milepost.configs.actors import RestartConfig
from milepost.configs.system import TimeoutsConfig
from milepost.messages.shared import Message
from milepost.messages.supervisor import Heartbeat, Hello, Ready, WorkFinished
from milepost.supervisor.core import SupervisorCore
from milepost.supervisor.events import (
    ChildExited,
    ChildStarted,
    DrainChild,
    DrainEnded,
    Effect,
    Event,
    Finish,
    Record,
    Said,
    SignalChild,
    StartChild,
    TellChild,
    Tick,
)
from milepost.supervisor.outcome import Verdict
from milepost.supervisor.plan import ChildPlan

SCHEMA = "a1b2"
TIMEOUTS = TimeoutsConfig(hello_s=10, ready_s=20, heartbeat_s=9, drain_s=6, stop_s=2)


def plan(
    name: str,
    *,
    order: int = 3,
    significant: bool = False,
    saves: bool = False,
    restart: RestartConfig | None = None,
) -> ChildPlan:
    kind, _, index = name.partition("-")
    policy = restart or RestartConfig()
    return ChildPlan(name, kind, int(index or 0), order, significant, saves, policy)


TRAINER = plan("trainer-0", order=0, significant=True, saves=True)
ENGINE = plan("engine-0", order=0)
ROLLOUT = plan("rollout", order=3)


class Story:
    """Feeds one core, keeps the time and everything that it ordered."""

    def __init__(self, *plans: ChildPlan, timeouts: TimeoutsConfig = TIMEOUTS) -> None:
        self.now_s = 100.0
        self.core = SupervisorCore(plans or (TRAINER, ENGINE, ROLLOUT), timeouts, SCHEMA, 100.0)
        self.effects: list[Effect] = []
        self.fresh: list[Effect] = []
        self._keep(self.core.start(self.now_s))

    def _keep(self, effects: list[Effect]) -> list[Effect]:
        self.core.validate()
        self.fresh = effects
        self.effects += effects
        return effects

    def tell(self, event: Event, *, after_s: float = 0.0) -> list[Effect]:
        self.now_s += after_s
        return self._keep(self.core.handle(event, self.now_s))

    def pass_time(self, seconds: float, *, beating: tuple[str, ...] = ()) -> list[Effect]:
        """Half-second ticks, with heartbeats of some; returns all that was ordered meanwhile."""
        ordered: list[Effect] = []
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            for name in beating:
                ordered += self.say(name, beat(name))
            ordered += self.tell(Tick())
        return ordered

    def say(self, name: str, message: Message, incarnation: int | None = None) -> list[Effect]:
        child = self.core.book.children.get(name)
        current = child.incarnation if child else 0
        return self.tell(Said(name, current if incarnation is None else incarnation, message))

    def hello(
        self, name: str, *, schema: str = SCHEMA, incarnation: int | None = None
    ) -> list[Effect]:
        child = self.core.book.children[name]
        number = child.incarnation if incarnation is None else incarnation
        message = Hello(actor=name, incarnation=number, pid=child.pid, schema=schema)
        return self.tell(Said(name, number, message, Request(name, 1)))

    def born(self, name: str, pid: int = 0) -> None:
        child = self.core.book.children[name]
        pid = pid or 1000 + len(self.effects)
        self.tell(ChildStarted(name, child.incarnation, pid))

    def up(self, *names: str) -> None:
        """Started, greeted and ready."""
        for name in names or tuple(self.core.book.children):
            self.born(name)
            self.hello(name)
            self.say(name, Ready(actor=name))

    def dies(
        self, name: str, *, code: int | None = 1, by: str = "", log: tuple[str, ...] = ()
    ) -> list[Effect]:
        child = self.core.book.children[name]
        return self.tell(ChildExited(name, child.incarnation, None if by else code, by, log))

    def finishes(self, name: str) -> list[Effect]:
        return self.say(name, WorkFinished(actor=name, summary={"steps": 3}))

    def drains(self, name: str, error: str = "") -> list[Effect]:
        return self.tell(DrainEnded(name, error))

    def state(self, name: str) -> str:
        return self.core.book.children[name].state_name

    @property
    def verdict(self) -> Verdict | None:
        ends = [effect.verdict for effect in self.effects if isinstance(effect, Finish)]
        assert len(ends) <= 1, "a run ends once"
        return ends[0] if ends else None

    def kinds(self) -> list[str]:
        """Kinds of the events recorded so far."""
        return [
            effect.message.kind
            for effect in self.effects
            if isinstance(effect, Record) and hasattr(effect.message, "kind")
        ]


def beat(name: str, progress: int = 0, working_on: str = "waits for a batch") -> Heartbeat:
    return Heartbeat(
        actor=name, state="running", working_on=working_on, progress=progress, statistics={}
    )


def signals(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(each.actor, each.signal) for each in effects if isinstance(each, SignalChild)]


def starts(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(each.actor, each.incarnation) for each in effects if isinstance(each, StartChild)]


def told(effects: list[Effect]) -> list[tuple[str, str]]:
    return [
        (each.actor, type(each.message).__name__) for each in effects if isinstance(each, TellChild)
    ]


def asked_to_drain(effects: list[Effect]) -> list[str]:
    return [each.actor for each in effects if isinstance(each, DrainChild)]
