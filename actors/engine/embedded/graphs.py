"""CUDA graphs of steps that only decode: one launch instead of hundreds.

A decoder launches some twenty small kernels a layer. For small batches launching them takes longer
than running them; a recorded graph is launched as a whole. Weights of both sets have graphs of
their own, since a graph remembers addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from milepost.actors.engine.embedded.decoder import Decoder
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.planning import Plan, Planner

_GRAPHS_MAX: Final = 64
"""Recorded shapes kept; the least recently used goes first."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One shape under one set of weights.

    Attributes:
        graph: a `torch.cuda.CUDAGraph`.
        columns: int64 [4, window], read by it.
        states: [window, hidden], written by it.
        weights: kept alive, as their address names the graph.
    """

    graph: Any
    columns: Tensor
    states: Tensor
    weights: Parameters


class DecodeGraphs:
    """Records a step the first time its shape comes, and replays it from then on.

    Args:
        decoder: what is recorded.
        planner: lays recorded batches out.
        device: a CUDA device.
    """

    def __init__(self, decoder: Decoder, planner: Planner, device: torch.device) -> None:
        self._decoder, self._planner, self._device = decoder, planner, device
        self._recorded: OrderedDict[tuple[int, int, int, int], _Recorded] = OrderedDict()
        self._pool: Any = None

    def hidden(self, weights: Parameters, plan: Plan) -> Tensor:
        """As `Decoder.hidden`; the result is overwritten by the next step."""
        assert not plan.groups, "a step with prefill has no fixed shape"
        key = (id(weights), plan.first_row, plan.window, plan.length)
        recorded = self._recorded.get(key)
        if recorded is None:
            recorded = self._recorded[key] = self._record(weights, plan)
            if len(self._recorded) > _GRAPHS_MAX:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        recorded.columns.copy_(torch.from_numpy(plan.columns))
        recorded.graph.replay()
        return recorded.states

    def _record(self, weights: Parameters, plan: Plan) -> _Recorded:
        columns = torch.from_numpy(plan.columns).to(self._device)
        # The first pass picks kernels and workspaces; what it writes to the cache is written again.
        self._decoder.hidden(weights, self._planner.lay_out(columns, plan))
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Another thread copies weights in meanwhile: only this thread's calls are recorded.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            states = self._decoder.hidden(weights, self._planner.lay_out(columns, plan))
        self._pool = self._pool or graph.pool()
        return _Recorded(graph, columns, states, weights)
