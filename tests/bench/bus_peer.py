"""The other process of `bench_bus`: answers at once.

    python -P bus_peer.py bus|holder|bare|handle FOLDER

bus     a milepost bus
holder  the same, which keeps every bucket until an `EpochAnswer` of the next version
bare    a ROUTER on zmq.asyncio and uvloop that sends two small frames back, nothing else
handle  a blocking ROUTER that maps the shared memory it is told of and reads one byte a page
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import uvloop
import zmq
import zmq.asyncio

from milepost.configs.spec import Address
from milepost.messages.bus import Bus
from milepost.messages.engine import EpochAnswer, WeightBucket

HEADER, BODY = b"h" * 80, b"b" * 30


def addresses(folder: str) -> dict[str, Address]:
    return {name: Address(endpoint=f"ipc://{folder}/{name}") for name in ("asker", "bus")}


async def serve_bus(folder: str, *, holds: bool = False) -> None:
    bus = await Bus.open(name="bus", incarnation=0, run_id="bench", addresses=addresses(folder))
    held: list[WeightBucket] = []
    while True:
        incoming = await bus.receive()
        match incoming.message:
            case WeightBucket() as bucket:
                for tensor in bucket.tensors:
                    sum(tensor.data[:: mmap.PAGESIZE].tolist())
                if holds:
                    held.append(bucket)
                del bucket
            case EpochAnswer(version=version) if holds:
                held = [one for one in held if one.version == version]
            case _:
                pass
        if incoming.wants_reply:
            bus.reply(incoming, EpochAnswer(version=1, ok=True))


async def serve_bare(folder: str) -> None:
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.bind(f"ipc://{folder}/bare")
    while True:
        route, *_ = await socket.recv_multipart(copy=False)
        await socket.send_multipart([route, HEADER, BODY])


def serve_handle(folder: str) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.bind(f"ipc://{folder}/handle")
    while True:
        route, name = socket.recv_multipart()
        descriptor = os.open(name.decode(), os.O_RDONLY)
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            os.close(descriptor)
            total = sum(memoryview(mapped)[:: mmap.PAGESIZE].tolist())
        socket.send_multipart([route, str(total).encode()])


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    assert Path(where).is_dir()
    match kind:
        case "bus":
            uvloop.run(serve_bus(where))
        case "holder":
            uvloop.run(serve_bus(where, holds=True))
        case "bare":
            uvloop.run(serve_bare(where))
        case _:
            serve_handle(where)
