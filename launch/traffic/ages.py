"""How old what a message carries is: the published version minus that of its oldest token.

The published version of a moment is known from the publisher's own words, which are tapped beside
the edge; until it speaks, from its last heartbeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from milepost.launch.traffic.edges import Spot
from milepost.launch.traffic.seen import Array, Seen, read_copy
from milepost.messages.supervisor import TrafficCopy
from milepost.messages.trainer import VersionPublished

PUBLISHER: Final = "publisher"
VERSIONS_MAX: Final = 64
"""Kept; a message read later than so many publications is judged by the oldest of them."""


class Ages:
    """What was published when.

    Args:
        actors: of a snapshot.
    """

    def __init__(self, actors: Iterable[Mapping[str, Any]]) -> None:
        facts = {actor["actor"]: actor["statistics"] for actor in actors}
        self.spot: Spot | None = None
        """Where versions are told; None when nobody publishes any."""
        self._published: deque[tuple[int, int]] = deque(maxlen=VERSIONS_MAX)
        if PUBLISHER in facts:
            self.spot = Spot(actor=PUBLISHER, peers="*", sent=True, received=False)
            serving = facts[PUBLISHER].get("serving")
            if isinstance(serving, int):
                self._published.append((0, serving))

    def note(self, copies: Sequence[TrafficCopy]) -> None:
        """What the publisher said, in order."""
        for one in (read_copy(PUBLISHER, copy) for copy in copies):
            if one.envelope["type"] != VersionPublished.__name__:
                continue
            version = one.fields["version"]
            if not self._published or self._published[-1][1] < version:
                self._published.append((one.at_ns, version))

    def of(self, seen: Seen) -> int | str:
        """Versions between the oldest token of the message and what was published then.

        Returns:
            Versions; or why nobody knows, with the type of the message.
        """
        name = seen.envelope["type"]
        if self.spot is None:
            return f"{name} has no staleness: this run has no {PUBLISHER}"
        if not seen.is_whole:
            return f"{name} has no staleness: its body is longer than a tap copies"
        oldest = min(_versions(seen.fields), default=None)
        if oldest is None:
            return f"{name} has no staleness: it carries no tokens with versions"
        if not self._published:
            return f"{name} has no staleness yet: no version was published"
        before = [version for at_ns, version in self._published if at_ns <= seen.at_ns]
        current = before[-1] if before else self._published[0][1]
        # An engine has a version a little before the publisher may say that all have it.
        return max(0, current - oldest)


def _versions(value: Any) -> Iterator[int]:
    """Versions of the spans of all rows and replies in a message, however deep.

    These have their token ids beside them. Any other `spans` are the user's own, of a prompt's
    metadata or of what an agent reported.
    """
    match value:
        case dict():
            match value:
                case {"token_ids": Array(), "spans": list(spans)}:
                    yield from _versions_of(spans)
            for each in value.values():
                yield from _versions(each)
        case list():
            for each in value:
                yield from _versions(each)


def _versions_of(spans: Iterable[Any]) -> Iterator[int]:
    for span in spans:
        match span:
            # A `VersionSpan` travels as a list.
            case [int(), int(), int(version)]:
                yield version
