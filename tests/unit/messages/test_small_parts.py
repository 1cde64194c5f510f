"""The small parts of the bus: addresses, alarm, loop delay, ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from milepost.messages.bus.address import ipc_path, lock_ipc
from milepost.messages.bus.alarm import Alarm
from milepost.messages.bus.host import Host
from milepost.messages.bus.loop_delay import LoopDelayWatcher, watcher_of
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.errors import AddressError
from milepost.messages.limits import BusLimits


def test_only_ipc_endpoints_have_a_path() -> None:
    assert ipc_path("ipc:///run/a") == "/run/a"
    assert ipc_path("tcp://127.0.0.1:1") == ""


def test_a_path_longer_than_the_kernel_takes_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 200))
    with (
        pytest.raises(AddressError, match=r"ipc path of \d+ bytes, the kernel allows 107"),
        lock_ipc(path),
    ):
        pass


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(AddressError, match="is open to other users"), lock_ipc(str(folder / "a")):
        pass
    with pytest.raises(AddressError, match="no folder"), lock_ipc(str(tmp_path / "none" / "a")):
        pass


def test_an_address_has_one_owner_and_is_free_after_it(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with lock_ipc(path):
        with pytest.raises(AddressError, match="another process owns"), lock_ipc(path):
            pass
        assert [one.name for one in tmp_path.iterdir()] == ["a.lock"]
    assert list(tmp_path.iterdir()) == []
    with lock_ipc(path):
        pass


async def test_the_alarm_rings_at_the_earliest_time_it_was_given() -> None:
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[float] = loop.create_future()

    def ring(now: float) -> float:
        rung.set_result(now)
        return float("inf")

    alarm = Alarm(loop, ring)
    soon = loop.time() + 0.01
    for due in (soon + 60, soon, soon + 30):
        alarm.wake(due)
    assert soon <= await rung < soon + 5
    alarm.cancel()
    alarm.wake(loop.time())


class Timer:
    """Of an alarm that is never woken earlier."""


class Clock:
    """As much of an event loop as an alarm uses; its time is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append((when, callback))
        return Timer()

    def go_to(self, now_s: float) -> None:
        """What is due by then is called, as late as that."""
        self.now_s = now_s
        due = [one for one in self.timers if one[0] <= now_s]
        self.timers = [one for one in self.timers if one[0] > now_s]
        for _, callback in due:
            callback()


def test_an_alarm_after_a_standstill_lets_what_came_meanwhile_be_read_first() -> None:
    """A process that was stopped for a minute would else call answers late that are there."""
    clock, rung = Clock(), []

    def ring(now: float) -> float:
        rung.append(now)
        return float("inf")

    alarm = Alarm(cast("Any", clock), ring)
    alarm.wake(101.0)
    clock.go_to(101.4)
    assert rung == [101.4], "late as any timer may be"
    alarm.wake(102.0)
    clock.go_to(160.0)
    assert rung == [101.4], "it stood still"
    clock.go_to(170.0)
    assert rung == [101.4, 170.0], "once: a loop that is always late has its deadlines, too"
    alarm.wake(171.0)
    clock.go_to(180.0)
    clock.go_to(180.1)
    assert rung == [101.4, 170.0, 180.1]


async def test_a_loop_that_was_blocked_shows_it() -> None:
    loop = asyncio.get_running_loop()
    watcher = LoopDelayWatcher(loop)
    assert watcher.delay().max_ms == 0
    watcher._delays.extend([0.001] * 98 + [0.1, 0.3])
    delay = watcher.delay()
    assert (delay.p50_ms, delay.p99_ms, delay.max_ms) == (1.0, 100.0, 300.0)
    watcher.start()
    watcher.start()
    watcher.stop()
    one_user_left = watcher.is_running
    watcher.stop()
    assert (one_user_left, watcher.is_running) == (True, False)
    assert watcher_of(loop) is watcher_of(loop)


def test_ids_of_two_incarnations_never_meet() -> None:
    """The cause of a message is found by its id in the whole run, restarts included."""

    def host(name: str, incarnation: int) -> Host:
        return Host(
            name=name,
            incarnation=incarnation,
            run_id="r",
            limits=BusLimits(),
            transport=MemoryNetwork(()).transport(name),
            clock=lambda: 0.0,
            wake=lambda _: None,
            flush_soon=lambda: None,
            released=lambda _: None,
            peer_restarted=lambda _: None,
        )

    hosts = [host(name, incarnation) for name in ("a", "b") for incarnation in range(3)]
    ids = {one.new_id(None) for one in hosts for _ in range(100)}
    assert len(ids) == 600
    assert max(ids) < 1 << 63
