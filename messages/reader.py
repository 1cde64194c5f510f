"""Reads one ZeroMQ socket whenever it has something, and writes to it.

The event loop watches the socket's file descriptor, and what is there is read without waiting:
nothing ever waits for a message, so nothing that waits can be cancelled and lose one. The
descriptor only tells that something changed, and sending may consume that news; so after
sending, the socket is asked whether something is there to read.

The methods of the C socket are called past pyzmq's Python layer, which costs more than the
calls themselves (12 us against 5 us for a message of four frames).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import zmq
from zmq.backend import Socket

if TYPE_CHECKING:
    from milepost.messages.bus.transport import Frames

BATCH: Final = 64
"""Messages read from one socket before other work of the loop gets its turn."""
COPY_BELOW_BYTES: Final = 1 << 16
"""Smaller frames are copied into and out of ZeroMQ, which is cheaper than keeping them alive
(crossing measured at 64 to 128 KiB)."""

_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.SNDMORE) | _NOBLOCK
_LOST: Final = (zmq.EAGAIN, zmq.EHOSTUNREACH, zmq.ENOTSOCK)


class Reader:
    """One socket on the event loop.

    Args:
        socket: with linger and high-water marks set, bound or connected or about to be.
        deliver: gets the frames of each message, in order.
        frames_max: longer messages are read and dropped.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        deliver: Callable[[list[bytes | memoryview]], None],
        frames_max: int,
    ) -> None:
        self.socket = socket
        self.num_oversized = 0
        self._deliver = deliver
        self._frames_max = frames_max
        self._get = Socket.get.__get__(socket)
        self._put = Socket.send.__get__(socket)
        self._take = Socket.recv.__get__(socket)
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._closed = False
        self._scheduled = False
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._look()

    def send(self, frames: Frames) -> bool:
        """Hand the frames to ZeroMQ; False when there is no room or no such route."""
        put = self._put
        last = frames[-1]
        try:
            for frame in frames[:-1]:
                put(frame, _MORE, len(frame) < COPY_BELOW_BYTES)
            put(last, _NOBLOCK, len(last) < COPY_BELOW_BYTES)
        except zmq.ZMQError as error:
            # Refused with the first frame or not at all: ZeroMQ never takes half a message.
            if error.errno not in _LOST:
                raise
            self._look_again()
            return False
        self._look_again()
        return True

    def _look_again(self) -> None:
        # Asked at once: a callback for it would cost the loop one more turn for each message.
        if not self._scheduled and not self._closed and self._get(_EVENTS) & _POLLIN:
            self._look()

    def _look(self) -> None:
        """See in the loop's next turn whether something is there."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_read)

    def _scheduled_read(self) -> None:
        self._scheduled = False
        self._read()

    def _read(self) -> None:
        """Read what is there, a batch at most."""
        empty = False
        try:
            empty = self._read_batch()
        finally:
            # Whatever fails above us, what is still in the socket must not wait for a next event.
            if not empty:
                self._look()

    def _read_batch(self) -> bool:
        """Whether nothing is left to read."""
        asked = 2
        for _ in range(BATCH):
            if self._paused or self._closed:
                return True
            # Asking is cheaper than a failed attempt; with many waiting, attempts are cheaper.
            if asked:
                asked -= 1
                if not self._get(_EVENTS) & _POLLIN:
                    return True
            try:
                frames = self._message()
            except zmq.ZMQError as error:
                if error.errno not in _LOST:
                    raise
                return True
            if frames is not None:
                self._deliver(frames)
        return False

    def drain(self) -> None:
        """Read everything that is there, before anything else gets its turn."""
        while not self._read_batch():
            pass

    def _message(self) -> list[bytes | memoryview] | None:
        """All frames of the next message; None (and counted) if there are too many."""
        take = self._take
        frames: list[bytes | memoryview] = []
        for _ in range(self._frames_max):
            frame = take(_NOBLOCK, False)  # noqa: FBT003 - positional in the C method
            frames.append(frame.bytes if len(frame) < COPY_BELOW_BYTES else frame.buffer)
            if not frame.more:
                return frames
        while frame.more:
            frame = take(_NOBLOCK, False)  # noqa: FBT003
        self.num_oversized += 1
        return None

    def pause(self, paused: bool) -> None:  # noqa: FBT001
        """Leave everything in ZeroMQ, or go on reading."""
        if paused == self._paused or self._closed:
            return
        self._paused = paused
        if paused:
            # Its descriptor stays readable: watching it would turn the loop for nothing.
            self._loop.remove_reader(self._descriptor)
        else:
            self._loop.add_reader(self._descriptor, self._read)
            self._look()

    def close(self, linger_s: float) -> None:
        """Stop reading; what was sent may still go out for `linger_s`."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self.socket.close(int(linger_s * 1000))
