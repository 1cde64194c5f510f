"""A mailbox on tcp in a process of its own; it answers `StacksRequested` with how it stands.

    python -P house.py ADDRESSES_JSON SECRET_KEY LISTEN_FD

Ends at the end of its standard input, with exit code 0 when everything could be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import msgspec
import psutil
import uvloop

from milepost.configs.spec import Address
from milepost.messages.bus import Bus, BusClosed, BusLimits
from milepost.messages.supervisor import Stacks, StacksRequested


async def answer(bus: Bus) -> None:
    process = psutil.Process()
    with contextlib.suppress(BusClosed):
        while True:
            incoming = await bus.receive()
            if isinstance(incoming.message, StacksRequested):
                stands = {
                    "memory_bytes": process.memory_info().rss,
                    "descriptors": process.num_fds(),
                    "strangers": bus.statistics().mailbox.strangers,
                }
                bus.reply(incoming, Stacks(text=json.dumps(stands)))
            else:
                bus.reply(incoming, incoming.message)


async def live(addresses: dict[str, Address], secret_key: str, listen_fd: int) -> None:
    bus = await Bus.open(
        name="house",
        incarnation=0,
        run_id="run",
        addresses=addresses,
        limits=BusLimits(probe_s=0.1),
        secret_key=secret_key,
        listen_fd=listen_fd,
    )
    answering = asyncio.create_task(answer(bus))
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    await bus.close(deadline_s=0.1)
    await answering


if __name__ == "__main__":
    places, key, descriptor = sys.argv[1:]
    everyone = msgspec.json.decode(places, type=dict[str, Address])
    uvloop.run(live(everyone, key, int(descriptor)))
