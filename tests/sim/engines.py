"""Engines of simulated runs: the real core before a scripted backend that serves numbers.

The backend is what its threads are: one samples, one takes weights in. What the first one has
sampled and that the second one's version serves are two pieces of news on two ways to the core.
"""

from __future__ import annotations

import struct
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from sim.rows import SHAPES, probe_of, turn_logprobs

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Effect, Event, Wake, Woken, Work, WorkDone
from milepost.actors.engine.core import Engine as Core
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    DropEpoch,
    EngineFacts,
    EpochError,
    Finished,
    ForgetOrder,
    GenerateOrder,
    OpenEpoch,
    ScoreFinished,
    ScoreOrder,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.messages.shared import FinishReason, VersionSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

FACTS = EngineFacts(manifest=SHAPES, vocab_size=1, context_tokens=1 << 20)
DECODE = "decode/"
"""Keys of the moments at which the sampling thread is done with an order."""


@dataclass(slots=True)
class _Flying:
    order: GenerateOrder | ScoreOrder
    begun: int | None
    """Version that served when it began."""
    aborted: bool = False


@dataclass(slots=True)
class Engine:
    """A reply takes a while, and a switch in between shows in its spans.

    Attributes:
        version: that really serves, whatever the core has heard.
    """

    name: str
    random: Random
    lies: bool = False
    """True: confirms a version that it does not serve."""
    keeps_caches: bool = False
    """True: samples over keys and values of the first version that it had."""
    incarnation: int = 0
    version: int | None = None
    staged: dict[str, float] = field(default_factory=dict)
    is_broken: bool = False
    """Takes no further version, and says so."""
    clings: float = 0.0
    """Chance that it cannot let go of what was staged."""
    core: Core = field(init=False)
    _first: int | None = None
    _fate: Random = field(init=False)
    """Apart, so that other stories stay what their seeds say."""
    _flying: dict[str, _Flying] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fate = copy(self.random)
        self.core = Core(self.name, "publisher", FACTS, 1 << 10, incarnation=self.incarnation)

    def start(self, now_s: float) -> list[Effect]:
        return self.core.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Woken) and event.key.startswith(DECODE):
            flying = self._flying.pop(event.key.removeprefix(DECODE), None)
            if flying is None:
                return []
            event = WorkDone(OUTCOMES, (self._outcome(flying),))
        return self._ordered(self.core.handle(event, now_s), now_s)

    def validate(self) -> None:
        self.core.validate()
        said, is_open = self.core.statistics()["serving"], self.core._epochs.is_switching
        assert self.lies or is_open or said == self.version, (
            f"{self.name} says that it serves {said}, and serves {self.version}"
        )

    def statistics(self) -> dict[str, object]:
        return self.core.statistics()

    def working_on(self) -> str:
        return self.core.working_on()

    # ---- the thread that samples ---------------------------------------------------------

    def _ordered(self, effects: list[Effect], now_s: float) -> list[Effect]:
        """The effects that are no orders; orders begin."""
        others: list[Effect] = []
        for effect in effects:
            match effect:
                case GenerateOrder(key) | ScoreOrder(key):
                    self._flying[key] = _Flying(effect, self.version)
                    others.append(Wake(DECODE + key, now_s + self._takes_s(effect)))
                case AbortOrder(_, request_ids):
                    for key in request_ids:
                        if key in self._flying:
                            self._flying[key].aborted = True
                            others.append(Wake(DECODE + key, now_s))
                case ForgetOrder():
                    pass
                case _:
                    others.append(effect)
        return others

    def _takes_s(self, order: GenerateOrder | ScoreOrder) -> float:
        if isinstance(order, ScoreOrder) or order.sampling.tokens_max == 1:
            return 0.0
        return 0.01 + self.random.random()

    def _outcome(self, flying: _Flying) -> Finished | ScoreFinished:
        order, served = flying.order, -1 if self.version is None else self.version
        if isinstance(order, ScoreOrder):
            rows = (from_bulk(probe_of(served)),)
            return ScoreFinished(order.key, rows, served + 1 if self.lies else served)
        if order.sampling.tokens_max == 1:
            first = self._first if self._first is not None and self.keeps_caches else served
            return self._finished(flying, (served,), from_bulk(turn_logprobs(first)))
        begun = served if flying.begun is None else flying.begun
        return self._finished(flying, tuple(dict.fromkeys((begun, served))))

    @staticmethod
    def _finished(
        flying: _Flying, versions: tuple[int, ...], logprobs: NDArray[np.float32] | None = None
    ) -> Finished:
        """One token of each version."""
        spans = (VersionSpan(start=at, end=at + 1, version=v) for at, v in enumerate(versions))
        zeros = _zeros(len(versions))
        return Finished(
            key=flying.order.key,
            token_ids=zeros.view(np.int32),
            logprobs=zeros if logprobs is None else logprobs,
            spans=tuple(spans),
            finish_reason=FinishReason.ABORT if flying.aborted else FinishReason.STOP,
            cached_tokens=0,
            kv_versions=versions,
        )

    # ---- the thread that takes weights in ------------------------------------------------

    def perform(self, work: Work) -> object:
        match work:
            case OpenEpoch():
                self.staged = {}
            case DropEpoch():
                if kept := self._let_go():
                    raise EpochError(kept)
            case StageBucket(_, names, tensors):
                for name, tensor in zip(names, tensors, strict=True):
                    (self.staged[name],) = struct.unpack("<f", tensor.data)
            case SwitchWeights(_, version):
                return self._switch(version)
            case _:
                raise TypeError(work)
        return None

    def _switch(self, version: int) -> Switched:
        wanted = {spec.name: float(version) for spec in SHAPES}
        if self.is_broken or self.staged != wanted:
            raise EpochError(f"not whole: {self.staged}")
        if not self.lies:
            self.version = version
            self._first = version if self._first is None else self._first
        return Switched(pause_s=0.1, num_in_flight=len(self._flying), kept=self._let_go())

    def _let_go(self) -> str:
        if self.clings and self._fate.random() < self.clings:
            return "memory that is not given back"
        self.staged = {}
        return ""


@cache
def _zeros(length: int) -> NDArray[np.float32]:
    return np.zeros(length, np.float32)
