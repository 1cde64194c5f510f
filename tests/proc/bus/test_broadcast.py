"""Statistics: heard by whoever listens, lost without harm, and never a cost to who says them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from proc.bus.harness import until

from milepost.messages.bus import AddressError
from milepost.messages.bus.broadcast import Broadcast
from milepost.messages.listener import KEPT, TOPIC, Listener
from milepost.messages.supervisor import Snapshot


def snapshot(step: int, size: int = 0) -> Snapshot:
    return Snapshot(run={"step": step, "x": "x" * size}, actors=[], last_metrics={}, events=[])


async def heard(listener: Listener) -> Snapshot:
    message = await listener.newest(5)
    assert isinstance(message, Snapshot), "nothing came"
    return message


async def test_listeners_come_late_and_go_and_the_speaker_knows(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/statistics"
    speaker = Broadcast(endpoint, "supervisor", "run")
    assert not speaker.is_heard
    await speaker.say(snapshot(1))
    first = Listener(endpoint, "run")
    await until(lambda: speaker.is_heard, "a listener")
    second = Listener(endpoint, "run")
    await speaker.say(snapshot(2))
    assert (await heard(first)).run["step"] == 2, "nothing of before it came"
    await first.close()
    # The second one's subscription may be on its way still; it hears a later one.
    step = 3
    while (message := await second.newest(0.05)) is None:
        await speaker.say(snapshot(step))
        step += 1
    assert isinstance(message, Snapshot)
    await second.close()
    await until(lambda: not speaker.is_heard, "the end of the last listener")
    await speaker.close()
    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_a_listener_that_does_not_read_misses_the_old_ones_and_counts_them(
    tmp_path: Path,
) -> None:
    """Its queue is bounded at both ends: nothing grows, and the newest is what it gets."""
    endpoint = f"ipc://{tmp_path}/statistics"
    speaker, listener = Broadcast(endpoint, "supervisor", "run"), Listener(endpoint, "run")
    await until(lambda: speaker.is_heard, "a listener")
    listener._reader.pause(True)  # noqa: FBT003
    sent = 400
    for number in range(1, sent):
        await speaker.say(snapshot(number, size=100_000))
    listener._reader.pause(False)  # noqa: FBT003
    got = await heard(listener)
    steps = [got.run["step"]]
    while (message := await listener.newest(0.3)) is not None:
        assert isinstance(message, Snapshot)
        steps.append(message.run["step"])
    assert steps == sorted(set(steps)), "in order, none twice"
    await speaker.say(snapshot(sent))
    assert (await heard(listener)).run["step"] == sent
    assert listener.num_missed + len(steps) >= sent - 1 - KEPT
    assert listener.num_missed > 0
    await listener.close()
    await speaker.close()


async def test_another_run_and_junk_are_passed_over(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/statistics"
    speaker, listener = Broadcast(endpoint, "supervisor", "other"), Listener(endpoint, "run")
    await until(lambda: speaker.is_heard, "a listener")
    await speaker.say(snapshot(1))
    speaker._reader.send([TOPIC, b"junk", b"\xc1"])
    speaker._reader.send([TOPIC])
    await until(lambda: listener.num_junk == 3, "three things nobody wants")
    assert await listener.newest(0) is None
    await listener.close()
    await speaker.close()


async def test_one_socket_of_a_run_speaks(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/statistics"
    speaker = Broadcast(endpoint, "supervisor", "run")
    with pytest.raises(AddressError, match="another process owns"):
        Broadcast(endpoint, "supervisor", "run")
    await speaker.say(snapshot(1, size=17 << 20))
    assert speaker.num_lost == 1
    await speaker.close()
