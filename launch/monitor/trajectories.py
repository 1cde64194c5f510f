"""Trajectories that a monitor has seen: those in flight, those that ended, the life of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

if TYPE_CHECKING:
    from milepost.launch.traffic.seen import Seen

FINISHED_MAX: Final = 256
LIFE_MAX: Final = 512
"""Messages kept of the trajectory that is open."""


class Flight(Struct, frozen=True, kw_only=True):
    """A trajectory that is not delivered yet, as rollout's ledger says."""

    name: str
    stage: str
    owner: str
    since_s: float
    """Monotonic time of this machine."""


class Finished(Struct, frozen=True, kw_only=True):
    """A trajectory on its way to the buffer."""

    name: str
    at_ns: int
    session: str
    status: str
    reward: float
    num_tokens: int
    num_sampled: int
    spans: tuple[tuple[int, int, int], ...]
    """(first token, behind the last, weight version)."""
    turns: tuple[dict[str, Any], ...]
    certificate: dict[str, Any]
    metrics: dict[str, float]
    token_ids: tuple[int, ...] = ()
    """The first ones, as far as a tap copies them."""
    num_rows: int = 1

    @property
    def versions(self) -> tuple[int, int] | None:
        """Oldest and newest version of its tokens."""
        found = [version for _, _, version in self.spans]
        return (min(found), max(found)) if found else None


def read_finished(seen: Seen) -> Finished | None:
    """The trajectory that this message delivers; None when it delivers none, or was not copied."""
    from milepost.launch.traffic.seen import Array

    row = seen.fields.get("trajectory")
    if seen.envelope.get("type") != "TrajectoryFinished" or not isinstance(row, Mapping):
        return None
    found = row.get("token_ids")
    tokens = found if isinstance(found, Array) else Array("int32", [0], [])
    return Finished(
        name=str(row.get("trajectory_id", "")),
        at_ns=seen.at_ns,
        session=str(seen.envelope.get("source", "")),
        status=str(row.get("status", "")),
        reward=float(row.get("reward", 0.0)),
        num_tokens=len(tokens),
        num_sampled=int(row.get("num_sampled_tokens", 0)),
        spans=tuple(_span(span) for span in row.get("spans", ())),
        turns=tuple(row.get("turns", ())),
        certificate=dict(row.get("certificate", {})),
        metrics=dict(row.get("metrics", {})),
        token_ids=tuple(tokens.first),
        num_rows=int(row.get("num_rows", 1)),
    )


def _span(span: Any) -> tuple[int, int, int]:
    if isinstance(span, Mapping):
        return int(span["start"]), int(span["end"]), int(span["version"])
    start, end, version = span
    return int(start), int(end), int(version)


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        return "", str(message)
    words = [message.get("content"), message.get("reasoning_content"), message.get("tool_calls")]
    return str(message.get("role", "")), " ".join(str(word) for word in words if word)


class Trajectories(Struct):
    """What the taps copied, in bounded memory."""

    in_flight: tuple[Flight, ...] = ()
    """The oldest ones, oldest first."""
    finished: deque[Finished] = field(default_factory=lambda: deque(maxlen=FINISHED_MAX))
    followed: str = ""
    """The one that is open; it is kept, however many end after it."""
    _kept: Finished | None = None
    life: deque[Seen] = field(default_factory=lambda: deque(maxlen=LIFE_MAX))
    num_dropped: int = 0
    """Messages that came faster than a tap copies."""
    _asked: set[tuple[str, int]] = set()
    """(who asked, number) of messages in `life`: answers do not name their trajectory."""

    def take_snapshot(self, rollout: Mapping[str, Any]) -> None:
        """Look at the statistics of the rollout actor."""
        self.in_flight = tuple(
            Flight(
                name=str(one["trajectory_id"]),
                stage=str(one["stage"]),
                owner=str(one["owner"]),
                since_s=float(one["since_s"]),
            )
            for one in rollout.get("oldest", ())
        )

    def follow(self, name: str) -> None:
        """The life of another trajectory is shown from now on."""
        if name != self.followed:
            _, self._kept = self.find(name)
            self.followed = name
            self.life.clear()
            self._asked.clear()

    def take_copies(self, seen: Iterable[Seen], dropped: int) -> None:
        """Look at what taps copied."""
        self.num_dropped += dropped
        for one in seen:
            if (found := read_finished(one)) is not None:
                self.finished.append(found)
                self._kept = found if found.name == self.followed else self._kept
            if self.followed and (self._answers(one) or self._concerns(one)):
                if len(self._asked) >= LIFE_MAX:
                    self._asked.clear()
                self._asked.add((str(one.envelope.get("source")), int(one.envelope.get("id", 0))))
                self.life.append(one)

    def _answers(self, one: Seen) -> bool:
        return (str(one.envelope.get("to")), int(one.envelope.get("cause", 0))) in self._asked

    def _concerns(self, one: Seen) -> bool:
        row = one.fields.get("trajectory")
        names = (
            one.fields.get("trajectory_id"),
            one.fields.get("session_id"),
            row.get("trajectory_id") if isinstance(row, Mapping) else None,
        )
        return self.followed in names

    def talk(self) -> list[tuple[str, str]]:
        """(role, text) of the followed conversation, as of its last turn that was copied."""
        said: list[tuple[str, str]] = []
        for one in self.life:
            match one.envelope.get("type"), one.fields:
                case "ChatTurn", {"messages": list(messages)}:
                    said = [_message(message) for message in messages]
                case "ChatReply", {"message": message}:
                    said.append(_message(message))
                case _:
                    pass
        return said

    def known(self) -> list[str]:
        """Names in the order of the list: in flight first, then the newest that ended."""
        flying = [one.name for one in self.in_flight]
        gone = {one.name: None for one in reversed(self.finished)}
        return [*flying, *(name for name in gone if name not in set(flying))]

    def find(self, name: str) -> tuple[Flight | None, Finished | None]:
        """What is known of a trajectory."""
        flight = next((one for one in self.in_flight if one.name == name), None)
        ended = next((one for one in reversed(self.finished) if one.name == name), None)
        if ended is None and self._kept is not None and self._kept.name == name:
            ended = self._kept
        return flight, ended
