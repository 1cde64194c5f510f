"""CURVE for tcp edges: key pairs made for one run, and the door that knows them.

ZeroMQ asks an authentication handler (ZAP, RFC 27) in the same process about each client that
completed the CURVE handshake; a client that does not know the mailbox's public key does not even
get that far.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable
from typing import Final

import zmq
from zmq.utils import z85

from milepost.messages.errors import AddressError
from milepost.messages.reader import Reader

_ENDPOINT: Final = "inproc://zeromq.zap.01"


def new_keys() -> tuple[str, str]:
    """A fresh key pair: (public, secret), Z85."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_of(secret_key: str) -> str:
    """The public key of a secret key, both Z85.

    Raises:
        AddressError: it is no key.
    """
    try:
        return zmq.curve_public(secret_key.encode()).decode()
    except (zmq.ZMQError, ValueError) as error:
        raise AddressError("the CURVE secret key of this actor is not a Z85 key") from error


class KeyDoor:
    """Lets in whoever holds the secret of a known public key."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], known: Callable[[], Iterable[str]]
    ) -> None:
        self._known = known
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1000)
        socket.setsockopt(zmq.SNDHWM, 1000)
        socket.bind(_ENDPOINT)
        self._reader = Reader(socket, self._decide, 32)

    def _decide(self, frames: list[bytes | memoryview]) -> None:
        delimiter = next((i for i, frame in enumerate(frames) if not frame), None)
        if delimiter is None or len(frames) < delimiter + 7:
            return
        envelope = frames[: delimiter + 1]
        version, request_id, *_ = frames[delimiter + 1 :]
        mechanism = bytes(frames[delimiter + 6])
        credentials = [bytes(frame) for frame in frames[delimiter + 7 :]]
        if self._is_known(mechanism, credentials):
            verdict = (b"200", b"OK")
        else:
            verdict = (b"400", b"this key is not of the run")
        self._reader.send([*envelope, version, request_id, *verdict, b"", b""])

    def _is_known(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        if mechanism != b"CURVE" or len(credentials) != 1:
            return False
        try:
            key = z85.encode(credentials[0]).decode()
        except (ValueError, binascii.Error):
            return False
        return key in set(self._known())

    def close(self) -> None:
        """Stop deciding; everything not decided is refused."""
        self._reader.close(0)
