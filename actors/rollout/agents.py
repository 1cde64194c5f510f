"""Which agent host runs which episode, and until when it may be silent about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Slot(NamedTuple):
    """One attempt of one episode."""

    trajectory_id: str
    attempt: int


@dataclass(slots=True)
class _Lease:
    agent: str
    ends_s: float


@dataclass(slots=True)
class AgentPool:
    """Room and leases of every agent host.

    Attributes:
        capacity: episodes each host may run at once.
        started_s: lease of an episode whose agent never says that it is alive.
        silence_s: lease from the last such word on.
    """

    capacity: dict[str, int]
    started_s: float
    silence_s: float
    _running: dict[str, set[Slot]] = field(default_factory=dict)
    _leases: dict[Slot, _Lease] = field(default_factory=dict)
    _slots: dict[str, set[Slot]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Episodes running."""
        return len(self._leases)

    def set_capacity(self, agent: str, episodes_max: int) -> None:
        """A host joined or changed its size."""
        self.capacity[agent] = episodes_max

    def least_loaded(self) -> str:
        """The host with the largest free share of its room; "" when none has any."""
        best, best_load = "", 1.0
        for agent, capacity in self.capacity.items():
            load = len(self._running.get(agent, ())) / capacity if capacity else 1.0
            if load < best_load:
                best, best_load = agent, load
        return best

    def start(self, agent: str, slot: Slot, now_s: float) -> None:
        """An episode goes to `agent`."""
        assert slot not in self._leases, slot
        self._leases[slot] = _Lease(agent, now_s + self.started_s)
        self._running.setdefault(agent, set()).add(slot)
        self._slots.setdefault(slot.trajectory_id, set()).add(slot)

    def renew(self, trajectory_id: str, now_s: float) -> None:
        """The episode made progress."""
        for slot in self._slots.get(trajectory_id, ()):
            self._leases[slot].ends_s = now_s + self.silence_s

    def agent_of(self, slot: Slot) -> str:
        """The host that runs it; "" when none does."""
        lease = self._leases.get(slot)
        return lease.agent if lease else ""

    def end(self, slot: Slot) -> bool:
        """The episode ended; False when it was not running here."""
        lease = self._leases.pop(slot, None)
        if lease is None:
            return False
        self._running[lease.agent].discard(slot)
        self._slots[slot.trajectory_id].discard(slot)
        if not self._slots[slot.trajectory_id]:
            del self._slots[slot.trajectory_id]
        return True

    def end_all(self, agent: str) -> list[Slot]:
        """The host is gone: what ran there, in a fixed order."""
        slots = sorted(self._running.get(agent, ()))
        for slot in slots:
            self.end(slot)
        return slots

    def end_expired(self, now_s: float) -> list[tuple[Slot, str]]:
        """Episodes silent beyond their lease, with their hosts, in a fixed order."""
        expired = sorted(
            (slot, lease.agent) for slot, lease in self._leases.items() if lease.ends_s <= now_s
        )
        for slot, _ in expired:
            self.end(slot)
        return expired

    def next_expiry_s(self) -> float | None:
        """When the next lease ends."""
        return min((lease.ends_s for lease in self._leases.values()), default=None)

    def validate(self) -> None:
        """Assert that both directions of the map agree and no host is over its room."""
        assert sum(map(len, self._running.values())) == len(self._leases)
        assert sum(map(len, self._slots.values())) == len(self._leases)
        for slot, lease in self._leases.items():
            assert slot in self._running[lease.agent], slot
