"""Between messages and frames: what is done at once, what on another thread, what in shared memory.

Small messages are encoded and decoded where they are sent and taken: a few microseconds, cheaper
than any hand-over. Copying into shared memory, and bodies above 256 KiB, go to a worker
thread, so the event loop goes on. (Packing itself holds the interpreter's lock for one call at a
time; arrays are not part of it, they are buffers.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from xxhash import xxh3_64_intdigest

from milepost.messages.bus.allotting import Allotments
from milepost.messages.bus.borrowing import Borrower
from milepost.messages.bus.lending import Lender, Loan
from milepost.messages.bus.returning import Origin
from milepost.messages.bus.segments import Segments
from milepost.messages.bus.transport import Frames
from milepost.messages.codec import Codec
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL, Header
from milepost.messages.errors import ProtocolError
from milepost.messages.layout import Encoded
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message

OFF_LOOP_BYTES: Final = 1 << 18
"""Larger bodies are packed and unpacked on a worker thread."""
SEGMENT_MARK: Final = b"\xa7segment"
"""What a body that refers to shared memory contains: the packed key."""


class Packing:
    """Encoder and decoder of one bus, with its shared memory and its two worker threads.

    Args:
        name: of the actor.
        incarnation: of the actor.
        run_id: other runs' messages and memory are refused.
        limits: of the bus.
        loop: the event loop.
        given_back: gets the origin of an `unpack` whose shared memory nobody refers to any more,
            on any thread.
        wake: has `lender.tick` called at this time.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        run_id: str,
        limits: BusLimits,
        loop: asyncio.AbstractEventLoop,
        given_back: Callable[[Origin], None],
        wake: Callable[[float], None],
    ) -> None:
        self._name = name
        self._run_id = run_id
        self._limits = limits
        self._loop = loop
        self._codec = Codec(limits)
        segments = Segments(run_id, loop.time, owner=f"{name}.{incarnation}")
        self.allotments = Allotments(segments, limits.allocated_bytes_max, self._dropped)
        self.lender = Lender(segments, self.allotments, loop.time, limits.lease_s)
        self.borrower = Borrower(run_id, given_back)
        self._wake = wake
        self._has_memory = segments.usable
        self._big: set[str] = set()
        self._going = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bus-out")
        self._coming = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bus-in")
        self.num_without_room = 0

    # ---- going ---------------------------------------------------------------------------

    def pack(self, message: Message) -> Encoded | None:
        """The message as frames; None when its type had a large body last time.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is larger than any receiver would accept.
        """
        if self._big:
            return None if type(message).__name__ in self._big else self._packed(message)
        encoded = self._codec.encode(message)
        if len(encoded.body) > OFF_LOOP_BYTES:
            self._big.add(encoded.type)
        return encoded

    def _packed(self, message: Message) -> Encoded:
        encoded = self._codec.encode(message)
        if len(encoded.body) > OFF_LOOP_BYTES:
            self._big.add(encoded.type)
        elif self._big:
            self._big.discard(encoded.type)
        return encoded

    def goes_aside(self, encoded: Encoded | None, *, local: bool) -> bool:
        """Whether `pack_aside` has to finish it, since the receiver is on this host or not."""
        if encoded is None:
            return True
        return local and bool(encoded.buffers) and self.shares(encoded)

    def shares(self, encoded: Encoded) -> bool:
        """Whether a receiver on this host gets the buffers in shared memory."""
        if not encoded.buffers or not self._has_memory:
            return False
        return encoded.num_bytes > self._limits.shared_memory_above_bytes

    async def pack_aside(
        self, message_id: int, message: Message, encoded: Encoded | None, *, to: str, local: bool
    ) -> Encoded:
        """Finish what `pack` did not do, or what `shares` asks for, on the worker thread.

        Args:
            message_id: under which the receiver gives shared memory back. Whoever sends the
                message settles the loan of this id.
            message: the message.
            encoded: what `pack` gave.
            to: name of the receiver.
            local: it is on this host.

        Raises:
            TypeError, ValueError: as `pack`.
        """
        run = self._loop.run_in_executor
        if encoded is None:
            encoded = await run(self._going, self._packed, message)
        if not local or not self.shares(encoded):
            return encoded
        loan = self.lender.lend(message_id, encoded.buffers, to)
        shared: Encoded | None = None
        try:
            if loan.fresh is None and len(encoded.body) <= OFF_LOOP_BYTES:
                shared = self._codec.encode(message, loan.places)
            else:
                shared = await run(self._going, self._share, message, loan)
        finally:
            if shared is None:  # whatever it was that went wrong
                self.lender.withdraw(message_id)
        if shared is None:
            self.num_without_room += 1
            return encoded
        return shared

    def allocate(self, nbytes: int, *, local: bool) -> memoryview:
        """Memory to make a payload in; on any thread.

        Args:
            nbytes: how much.
            local: its receivers are on this host.
        """
        if local and self._has_memory:
            return self.allotments.allocate(nbytes)
        return memoryview(bytearray(nbytes))

    def _dropped(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self.allotments.collect()
        self._wake(self.lender.due)

    def settle(self, message_id: int, taken: bool) -> None:  # noqa: FBT001
        """A message is not sent again; if it was lent, its loan goes on or is lost."""
        self.lender.settle(message_id, taken=taken)
        self._wake(self.lender.due)

    def give_back(self, message_id: int) -> None:
        """The receiver of this message does not read its shared memory any more."""
        self.lender.give_back(message_id)
        self._wake(self.lender.due)

    def _share(self, message: Message, loan: Loan) -> Encoded | None:
        if not self.lender.fill(loan):
            return None
        return self._codec.encode(message, loan.places)

    # ---- coming --------------------------------------------------------------------------

    def is_big(self, body: bytes | memoryview) -> bool:
        """Whether `unpack_aside` should be used."""
        return len(body) > OFF_LOOP_BYTES

    def unpack(self, header: Header, frames: Frames, origin: Origin) -> tuple[Message, int]:
        """The message of these frames (body first), and the digest of its body.

        The digest is 0 where the body is large, or says where in shared memory the rest lies: its
        sender does not have the same bytes then, or not at once.

        Args:
            header: of the message.
            frames: body and buffers.
            origin: what `given_back` gets, once, if the message lies in shared memory.

        Raises:
            ProtocolError: it cannot be read here, with the reason.
        """
        self._check(header)
        version = (header.major, header.minor)
        body, buffers = bytes(frames[0]), frames[1:]
        codec = self._codec
        if SEGMENT_MARK not in body:
            digest = 0 if self.is_big(body) else xxh3_64_intdigest(body)
            return codec.decode(header.type, body, buffers, version=version), digest
        with self.borrower.reading(origin) as opener:
            return codec.decode(header.type, body, buffers, version=version, opener=opener), 0

    def _check(self, header: Header) -> None:
        if header.major != PROTOCOL[0]:
            raise ProtocolError(
                f"{header.source} speaks protocol {header.major}.{header.minor}, {self._name} "
                f"{PROTOCOL[0]}.{PROTOCOL[1]}: major versions differ, start both from one commit"
            )
        if header.run_id != self._run_id:
            raise ProtocolError(
                f"{header.source} belongs to run {header.run_id}, {self._name} to {self._run_id}"
            )

    def unpack_refusal(self, header: Header, frames: Frames) -> NotUnderstood:
        """Why a peer refused a message; readable from any run and any version.

        Raises:
            ProtocolError: it is no such answer.
        """
        message = self._codec.decode(header.type, bytes(frames[0]))
        if not isinstance(message, NotUnderstood):
            raise ProtocolError(f"{header.type} came as a refusal")
        return message

    async def unpack_aside(
        self, header: Header, frames: Frames, origin: Origin
    ) -> tuple[Message, int]:
        """The same on a worker thread."""
        return await self._loop.run_in_executor(self._coming, self.unpack, header, frames, origin)

    def close(self) -> None:
        """Remove all shared memory of ours, end the threads."""
        self._going.shutdown(wait=True)
        self._coming.shutdown(wait=True)
        self.lender.close()
