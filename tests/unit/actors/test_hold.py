"""A held core: its clock stands still, what it would be told waits, and a hold has an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from milepost.actors.effects import Wake, Woken
from milepost.actors.hold import Hold, Told
from milepost.configs.system import BusConfig, SystemConfig, TimeoutsConfig
from milepost.messages.supervisor import Frozen, Refused, Thawed

SYSTEM = SystemConfig(
    timeouts=TimeoutsConfig(ask_s=20.0, tell_s=60.0), bus=BusConfig(inbox_messages_max=3)
)


@dataclass
class Later:
    """One call that is to come, when the test says so."""

    delay_s: float
    call: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Bench:
    """A hold on a clock of the test's own."""

    now_s: float = 100.0
    calls: list[Later] = field(default_factory=list)
    reports: list[tuple[str, str]] = field(default_factory=list)
    resumed: list[tuple[list[Told], list[Wake]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hold = Hold(
            "buffer",
            SYSTEM,
            later=self.later,
            report=lambda kind, text: self.reports.append((kind, text)),
            resume=lambda kept, wakes: self.resumed.append((kept, wakes)),
            clock=lambda: self.now_s,
        )

    def later(self, delay_s: float, call: Callable[[], object]) -> Later:
        self.calls.append(Later(delay_s, call))
        return self.calls[-1]


def test_the_time_of_a_core_stands_still_while_it_is_held() -> None:
    """A lease of 60 s that had 10 s left when the hold began has 10 s left when it ends."""
    bench = Bench()
    assert bench.hold.freeze(5) == Frozen(actors=("buffer",), seconds=5)
    bench.now_s += 4
    assert bench.hold.now_s() == 100.0
    assert "frozen for 4.0 s by milepost freeze, thaws by itself in 1.0 s" in bench.hold.words()
    assert bench.hold.thaw("milepost thaw") == Thawed(actors=("buffer",))
    bench.now_s += 2
    assert bench.hold.now_s() == 102.0
    assert bench.hold.freeze(5) == Frozen(actors=("buffer",), seconds=5)
    bench.now_s += 5
    bench.hold.thaw("milepost thaw")
    assert bench.hold.now_s() == 102.0, "two holds add up"


def test_what_waited_comes_in_order_and_timers_are_set_again() -> None:
    bench = Bench()
    bench.hold.freeze(5)
    told = [Told(Woken("a")), Told(Woken("b"), 7, 6)]
    for each in told:
        bench.hold.keep(each)
    bench.hold.keep_wake(Wake("c", 101.0))
    bench.hold.thaw("milepost thaw")
    assert bench.resumed == [(told, [Wake("c", 101.0)])]
    assert bench.reports[1] == ("thawed", "buffer goes on: milepost thaw; 2 events waited")


def test_a_hold_ends_by_itself() -> None:
    bench = Bench()
    bench.hold.freeze(0)
    (call,) = bench.calls
    assert call.delay_s == 10.0, "half of the shortest deadline of a question"
    call.call()
    assert not bench.hold.is_on
    assert bench.reports[-1][1].startswith("buffer goes on: its time was over")


def test_a_hold_that_would_cost_somebody_an_answer_is_refused() -> None:
    bench = Bench()
    assert bench.hold.freeze(11) == Refused(
        reason="11 s are too long, it can be frozen for 10 s since system.timeouts.ask_s = 20"
    )
    assert not bench.hold.is_on
    bench.hold.freeze(1)
    assert bench.hold.freeze(1) == Refused(reason="it is frozen already")


def test_a_hold_without_room_for_more_events_ends() -> None:
    """The queue in front of a held core is as bounded as its mailbox."""
    bench = Bench()
    bench.hold.freeze(5)
    for number in range(3):
        bench.hold.keep(Told(Woken(str(number))))
    assert len(bench.resumed[0][0]) == 3
    assert bench.calls[0].cancelled
    with pytest.raises(AssertionError):
        bench.hold.keep(Told(Woken("x")))


def test_thawing_who_is_not_held_changes_nothing() -> None:
    bench = Bench()
    assert bench.hold.thaw("milepost thaw") == Thawed(actors=())
    assert bench.reports == []
