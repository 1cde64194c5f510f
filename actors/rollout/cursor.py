"""The endless order of prompts: every epoch each prompt once, in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from milepost.configs.seeds import derive_seed
from milepost.messages.shared import Prompt


class PromptOrder:
    """Maps positions 0, 1, 2, ... of the run to prompts.

    Epoch e is positions [e * n, (e + 1) * n). With `shuffle`, its order is a permutation drawn from
    the seed and e alone, so a resumed run finds the same prompt at the same position.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, *, shuffle: bool) -> None:
        assert prompts, "an order needs at least one prompt"
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._prompts)

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All of them, as their source orders them."""
        return self._prompts

    def at(self, position: int) -> Prompt:
        """The prompt at `position` >= 0."""
        assert position >= 0, position
        epoch, offset = divmod(position, len(self._prompts))
        if not self._shuffle:
            return self._prompts[offset]
        if epoch != self._epoch:
            self._order = list(range(len(self._prompts)))
            Random(derive_seed(self._seed, "prompts", epoch)).shuffle(self._order)
            self._epoch = epoch
        return self._prompts[self._order[offset]]
