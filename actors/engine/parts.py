"""Streamed replies on their way to who asked: one message for each that was not taken yet.

A part waits until the one before it was taken, and takes along all that was sampled meanwhile. So a
slow asker gets fewer, larger parts, and sampling never waits for anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Effect, Tell
from milepost.messages.session import GeneratedPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS_MAX: Final = 1024
"""Of one part: reading it must not hold the asker up."""
_KEY: Final = "part/"


@dataclass(slots=True)
class _Stream:
    to: str
    waiting: list[NDArray[np.int32]] = field(default_factory=list)
    num_told: int = 0
    is_telling: bool = False


class Parts:
    """All streamed replies of one engine; at most one for each request in flight."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        """Streamed replies in flight."""
        return len(self._streams)

    def open(self, request_id: str, to: str) -> None:
        """This request is to be streamed."""
        self._streams[request_id] = _Stream(to)

    def sampled(self, request_id: str, token_ids: NDArray[np.int32]) -> list[Effect]:
        """The reply has these further tokens."""
        stream = self._streams.get(request_id)
        if stream is None:
            return []
        stream.waiting.append(token_ids)
        return self._tell(request_id, stream)

    def taken(self, key: str) -> list[Effect]:
        """The asker has taken the part of this key."""
        request_id = key.removeprefix(_KEY)
        stream = self._streams.get(request_id)
        if stream is None:
            return []
        stream.is_telling = False
        return self._tell(request_id, stream)

    def drop(self, key: str) -> None:
        """The part of this key was not taken: its request is streamed no further."""
        self.close(key.removeprefix(_KEY))

    def close(self, request_id: str) -> None:
        """The request was answered; the answer has what was not told."""
        self._streams.pop(request_id, None)

    def _tell(self, request_id: str, stream: _Stream) -> list[Effect]:
        if stream.is_telling or not stream.waiting:
            return []
        token_ids = np.concatenate(stream.waiting)
        stream.waiting = [token_ids[TOKENS_MAX:]] if len(token_ids) > TOKENS_MAX else []
        token_ids = token_ids[:TOKENS_MAX]
        part = GeneratedPart(
            request_id=request_id, start=stream.num_told, token_ids=to_bulk(token_ids)
        )
        stream.num_told += len(token_ids)
        stream.is_telling = True
        return [Tell(stream.to, part, f"{_KEY}{request_id}", confirm=True)]
