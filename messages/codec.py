"""Messages to frames and back: the body is a msgpack map of the message's fields.

Bodies are written in one pass, and read in one where the type alone says what every value is.
Values of any type (`dict[str, Any]`) are unpacked by `msgpack` first, which takes fewer kinds.
Arrays in it (`Bulk`, at any depth) are placed by `layout`; nothing large is copied on the way out
or in. Limits are checked before anything is decoded, and whatever arrives, the only exception is
`ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import msgpack, to_builtins

from milepost.messages import registry
from milepost.messages.bodies import RAW, UNREADABLE, read_open, unreadable
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL
from milepost.messages.errors import ProtocolError
from milepost.messages.layout import Buffer, Encoded, Layout, Opener, Place, Placed
from milepost.messages.limits import BusLimits
from milepost.messages.msgpacking import pack
from milepost.messages.shared import Message
from milepost.messages.structure import check_structure
from milepost.messages.upgrades import UPGRADES, Upgrade

_TIMES: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""How a time begins, which is an extension type and no part of the protocol: it travels as text."""


class UnknownType(ProtocolError):
    """The peer speaks of a message type that this side does not have."""


class Codec:
    """Encodes and decodes every registered message type. Checks itself when built.

    Raises:
        RuntimeError: a message does not survive the way out and back.
    """

    def __init__(
        self, limits: BusLimits | None = None, upgrades: tuple[Upgrade, ...] = UPGRADES
    ) -> None:
        self.limits = limits or BusLimits()
        self._upgrades = upgrades
        sample = NotUnderstood(type="t", major=1, minor=0, reason="checks the codec")
        encoded = self.encode(sample)
        back = self.decode(encoded.type, encoded.body)
        if back != sample:
            raise RuntimeError(f"codec check: sent {sample}, got back {back}")

    def encode(self, message: Message, places: Sequence[Place] = ()) -> Encoded:
        """Body and buffers of a message.

        Args:
            message: of a registered type.
            places: where each of the buffers lies that would be frames otherwise; empty for frames.

        Raises:
            TypeError: an unregistered type, or a value that cannot travel.
            ValueError: more frames or bytes than the receiver would accept.
        """
        known = registry.of(message)
        try:
            layout = Layout(self.limits.inline_bytes_max, places) if known.has_bulk else None
            body = msgpack.encode(message, enc_hook=layout)
            if b"\xff" in body and not known.is_closed and any(mark in body for mark in _TIMES):
                layout = Layout(self.limits.inline_bytes_max, places) if known.has_bulk else None
                body = pack(to_builtins(message, builtin_types=RAW, enc_hook=layout))
            encoded = Encoded(known.name, body)
            if layout is not None:
                encoded.buffers, encoded.groups = layout.buffers, layout.groups
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"{known.name} cannot travel: {error}") from error
        if len(body) > self.limits.body_bytes_max or encoded.buffers:
            self._check_sizes(encoded)
        return encoded

    def decode(
        self,
        type_name: str,
        body: bytes,
        buffers: Sequence[Buffer] = (),
        *,
        version: tuple[int, int] = PROTOCOL,
        opener: Opener | None = None,
    ) -> Message:
        """The message of these bytes. Buffers stay where they are: the message refers to them.

        Raises:
            UnknownType: no such message type here.
            ProtocolError: anything else that is wrong, with the path of the field.
        """
        known = registry.find(type_name)
        if known is None:
            nearest = registry.nearest(type_name)
            hint = f", nearest is {nearest}" if nearest else ""
            raise UnknownType(f"unknown message type {type_name!r}{hint}")
        limits = self.limits
        if len(buffers) + 2 > limits.frames_max:
            raise ProtocolError(f"{len(buffers) + 2} frames, the limit is {limits.frames_max}")
        maybe_deep = check_structure(
            body,
            bytes_max=limits.body_bytes_max,
            depth_max=limits.depth_max,
            items_max=limits.items_max,
        )
        is_old = version < PROTOCOL and bool(self._upgrades)
        hook = Placed(buffers, opener) if known.has_bulk else None
        try:
            if known.is_closed and not maybe_deep and not is_old:
                return msgpack.decode(body, type=known.type, dec_hook=hook)
            return read_open(
                known.type,
                body,
                depth_max=limits.depth_max if maybe_deep else 0,
                version=version,
                steps=self._upgrades if is_old else (),
                hook=hook,
            )
        except ProtocolError:
            raise
        except UNREADABLE as error:
            raise unreadable(type_name, error) from error

    def _check_sizes(self, encoded: Encoded) -> None:
        limits = self.limits
        name, size = encoded.type, len(encoded.body)
        if size > limits.body_bytes_max:
            raise ValueError(
                f"{name}: body of {size} bytes, system.bus.body_bytes_max is "
                f"{limits.body_bytes_max}; arrays belong into Bulk"
            )
        if len(encoded.groups) + 2 > limits.frames_max:
            raise ValueError(
                f"{name}: {len(encoded.groups) + 2} frames, "
                f"system.bus.frames_max is {limits.frames_max}"
            )
        largest = max((buffer.nbytes for buffer in encoded.buffers), default=0)
        if largest > limits.frame_bytes_max:
            raise ValueError(
                f"{name}: a buffer of {largest} bytes, "
                f"system.bus.frame_bytes_max is {limits.frame_bytes_max}"
            )
