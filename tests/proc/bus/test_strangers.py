"""Strangers at the door: unknown keys, junk, frames of a gigabyte, connections by the hundred."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from proc.bus.harness import ended, number_of, numbered, serve, until

from milepost.configs.spec import Address
from milepost.messages.bulk import Bulk
from milepost.messages.bus import AddressError, Bus, BusLimits, Unanswered, new_keys
from milepost.messages.engine import WeightBucket

LIMITS = BusLimits(probe_s=0.1, frame_bytes_max=1 << 22)
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
ZMTP_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


def free_tcp() -> tuple[socket.socket, str]:
    """A bound, listening socket and its endpoint: never a number to race for."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}"


class Tcp:
    """Two buses over tcp with CURVE."""

    def __init__(self) -> None:
        self.keys = {name: new_keys() for name in "ab"}
        self.listeners = {name: free_tcp() for name in "ab"}
        self.addresses = {
            name: Address(endpoint=endpoint, public_key=self.keys[name][0])
            for name, (_, endpoint) in self.listeners.items()
        }

    def close(self) -> None:
        for listener, _ in self.listeners.values():
            listener.close()

    async def bus(self, name: str, **changes: object) -> Bus:
        listener = self.listeners[name][0] if name in self.listeners else None
        options: dict[str, object] = {
            "secret_key": self.keys[name][1] if name in self.keys else "",
            "listen_fd": listener.detach() if listener is not None else -1,
            **changes,
        }
        return await Bus.open(
            name=name,
            incarnation=0,
            run_id="run",
            addresses=self.addresses,
            limits=LIMITS,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def keys() -> Iterator[Tcp]:
    made = Tcp()
    yield made
    made.close()


@pytest.fixture
async def tcp(keys: Tcp) -> AsyncIterator[tuple[Tcp, Bus, Bus]]:
    made = keys
    a, b = await made.bus("a"), await made.bus("b")
    server = serve(b, lambda incoming: b.reply(incoming, incoming.message))
    yield made, a, b
    await ended(server)
    await a.close(deadline_s=0.1)
    await b.close(deadline_s=0.1)


async def test_two_actors_talk_over_tcp_with_the_keys_of_the_run(
    tcp: tuple[Tcp, Bus, Bus],
) -> None:
    """Large arrays go as frames there: the other end may be another host."""
    _, a, _ = tcp
    assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1
    bucket = WeightBucket(
        version=1, index=0, names=("w",), tensors=(Bulk("uint8", (2 << 20,), b"\x05" * (2 << 20)),)
    )
    assert (await a.ask("b", bucket, deadline_s=10)).message == bucket
    assert a.statistics().memory.segments_bytes == 0


async def test_peers_with_a_key_of_the_run_do_not_stand_at_the_door(
    tcp: tuple[Tcp, Bus, Bus],
) -> None:
    """Else a large run fills its own doorstep, and its newcomers wait outside."""
    _, a, b = tcp
    assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1
    step = b._host.transport._doorstep  # type: ignore[attr-defined]
    await until(lambda: step.num_proven == 1, "word of the proof")
    assert (step.num_accepted, step.num_standing) == (1, 0)


async def test_a_key_the_run_does_not_know_is_refused_and_the_stranger_told_why(
    tcp: tuple[Tcp, Bus, Bus],
) -> None:
    made, a, b = tcp
    stranger = await made.bus("stranger", secret_key=new_keys()[1])
    with pytest.raises(Unanswered, match=r"the connection was refused \(our CURVE key"):
        await stranger.ask("b", numbered(1), deadline_s=0.5)
    assert b.statistics().mailbox.received == 0
    await stranger.close(deadline_s=0.01)
    assert number_of(await a.ask("b", numbered(2), deadline_s=10)) == 2


async def test_a_client_whose_key_was_named_is_let_in(keys: Tcp) -> None:
    """The command line has a key of the run, and no mailbox."""
    public, secret = new_keys()
    b = await keys.bus("b", client_keys=(public,))
    server = serve(b, lambda incoming: b.reply(incoming, incoming.message))
    guest = await keys.bus("guest", secret_key=secret)
    assert number_of(await guest.ask("b", numbered(3), deadline_s=10)) == 3
    await ended(server)
    await guest.close(deadline_s=0.1)
    await b.close(deadline_s=0.1)


async def test_tcp_without_keys_is_refused_before_anything_is_bound(keys: Tcp) -> None:
    with pytest.raises(AddressError, match=r"a may not bind tcp://.* without a CURVE secret key"):
        await keys.bus("a", secret_key="", listen_fd=-1)


async def test_a_client_without_encryption_gets_nowhere(tcp: tuple[Tcp, Bus, Bus]) -> None:
    """A plain ZeroMQ socket that sends a well-formed message: CURVE never lets it in."""
    made, a, b = tcp
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.setsockopt(zmq.SNDHWM, 10)
        plain.connect(made.addresses["b"].endpoint)
        plain.send_multipart([b"\x97" + bytes(7), b"", b""])
        assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1
        assert b.statistics().mailbox.senders == 1
        assert b.statistics().mailbox.junk == 0


@pytest.mark.parametrize(
    "junk",
    [
        b"\x80\x05cposix\nsystem\n(S'true'\ntR.",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 64,
        b"\xff" * 10_000,
        ZMTP_GREETING[:20],
    ],
    ids=["pickle", "http", "bytes", "ones", "half a greeting"],
)
async def test_junk_on_the_port_harms_nobody(tcp: tuple[Tcp, Bus, Bus], junk: bytes) -> None:
    made, a, _ = tcp
    host, port = made.addresses["b"].endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(junk)
        assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1


async def test_hundreds_of_silent_connections_neither_stop_nor_bloat_it(
    tcp: tuple[Tcp, Bus, Bus],
) -> None:
    """They are closed when they have not proven a key in time; until then they cost little."""
    made, a, _ = tcp
    host, port = made.addresses["b"].endpoint.removeprefix("tcp://").split(":")
    before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as strangers:
        for _ in range(400):
            strangers.enter_context(socket.create_connection((host, int(port))))
        assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1
        grown = psutil.Process().memory_info().rss - before
        assert grown < 32 << 20, f"{grown >> 20} MiB for 400 connections"


@pytest.fixture
async def b_on_ipc(tmp_path: Path) -> AsyncIterator[Bus]:
    addresses = {name: Address(endpoint=f"ipc://{tmp_path}/{name}") for name in "ab"}
    b = await Bus.open(name="b", incarnation=0, run_id="run", addresses=addresses, limits=LIMITS)
    yield b
    await b.close(deadline_s=0.1)


def shake_hands(path: Path) -> socket.socket:
    """A ZeroMQ connection made by hand, up to the point where messages begin."""
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(5)
    stranger.connect(str(path))
    stranger.sendall(ZMTP_GREETING + b"\x04" + bytes([len(ZMTP_READY)]) + ZMTP_READY)
    received = b""
    while len(received) < 66 or len(received) < 66 + received[65]:
        received += stranger.recv(4096)
    return stranger


async def test_a_frame_that_announces_a_gigabyte_ends_the_connection(
    b_on_ipc: Bus, tmp_path: Path
) -> None:
    """Before a byte of it is read, or room made for it."""
    del b_on_ipc
    before = psutil.Process().memory_info().rss

    def announce() -> bytes:
        with shake_hands(tmp_path / "b") as stranger:
            stranger.sendall(b"\x02" + struct.pack(">Q", 1 << 30) + b"x" * 1000)
            return stranger.recv(1)

    assert await asyncio.to_thread(announce) == b"", "the connection is still open"
    assert psutil.Process().memory_info().rss - before < 16 << 20


async def test_a_message_of_too_many_frames_is_dropped_and_counted(
    b_on_ipc: Bus, tmp_path: Path
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.SNDHWM, 10)
        stranger.connect(f"ipc://{tmp_path}/b")
        stranger.send_multipart([b""] * (LIMITS.frames_max + 10))
        addresses = {name: Address(endpoint=f"ipc://{tmp_path}/{name}") for name in "ab"}
        a = await Bus.open(name="a", incarnation=0, run_id="run", addresses=addresses)
        server = serve(b_on_ipc, lambda incoming: b_on_ipc.reply(incoming, incoming.message))
        assert number_of(await a.ask("b", numbered(1), deadline_s=10)) == 1
        while b_on_ipc.statistics().mailbox.junk == 0:
            await a.ask("b", numbered(1), deadline_s=10)
        await ended(server)
        await a.close(deadline_s=0.1)
