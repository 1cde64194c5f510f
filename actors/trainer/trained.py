"""Which groups were trained: a count, and the names that nobody else has on disk yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class TrainedGroups:
    """All groups trained since the run began.

    The rollout actor's ledger has every name, too. As soon as it is safe there, it goes from here:
    checkpoints stay small, however long the run is, and a resume takes the sum of both.

    Attributes:
        num_before: groups whose names only the ledger has.
    """

    num_before: int = 0
    _batches: deque[tuple[int, tuple[str, ...]]] = field(default_factory=deque)
    """The version that came out of each batch, and its groups."""

    def __len__(self) -> int:
        """Groups trained."""
        return self.num_before + sum(len(names) for _, names in self._batches)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the groups that are not in the ledger for sure, in order."""
        return tuple(name for _, names in self._batches for name in names)

    def add(self, version: int, names: tuple[str, ...]) -> None:
        """These groups were trained, and `version` came out of it."""
        self._batches.append((version, names))

    def written(self, version: int) -> None:
        """The ledger's journal has every name up to `version`, also after a power cut."""
        while self._batches and self._batches[0][0] <= version:
            self.num_before += len(self._batches.popleft()[1])

    def validate(self) -> None:
        """Assert that no name is there twice (TR-2)."""
        assert len(self.names) == len(set(self.names)), "TR-2 (once): a group twice"
