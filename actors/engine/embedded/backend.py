"""The embedded engine behind its threads: one decodes, one takes new weights in.

The event loop hands orders over and never waits. The decoding thread takes all orders between two
steps and posts what ended in a step as one event. New weights are copied and hashed by a thread of
their own while decoding goes on; only the exchange of two references happens between two steps.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Final

import torch

from milepost.actors.effects import Event, Work, WorkDone
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import UnsupportedModelError, read_shape
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    CopyWeights,
    DropEpoch,
    EngineFacts,
    ForgetOrder,
    GenerateOrder,
    OpenEpoch,
    Order,
    Outcome,
    PullWeights,
    ReadDigests,
    ReceiveWeights,
    ScoreOrder,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.actors.engine.receiving import Receiver
from milepost.actors.engine.sharing import Sharing
from milepost.configs.actors import EngineConfig

_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may keep the interpreter while another wants it. At Python's 5 ms a handler of
the event loop could hold up a decoding step for several times the step's own length."""
_ORDERS_MAX: Final = 65536
"""Orders between two steps; the actor's own limit of requests is far below."""


@dataclass(frozen=True, slots=True)
class _Switch(Order):
    """Serve what is staged; the future gets `Switched`."""

    work: SwitchWeights
    done: Future[Switched]


class EmbeddedBackend:
    """`Backend` that computes in this process.

    Args:
        folder: checkpoint whose `config.json` gives the shape.
        config: `[actors.engine]`.
        dtype: `float32` or `bfloat16`.
        context_tokens: most tokens of one row.
        receiver: takes whole versions in.
        keeps_routes: note the experts of every token.

    Raises:
        UnsupportedModelError: an architecture that is not computed, or one without experts whose
            routes shall be kept.
    """

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        *,
        dtype: str,
        context_tokens: int,
        receiver: Receiver,
        keeps_routes: bool = False,
    ) -> None:
        self._receiver = receiver
        torch.set_num_threads(config.threads)
        shape = read_shape(folder)
        if keeps_routes and shape.routes is None:
            raise UnsupportedModelError(
                f"{folder} has no mixture of experts, so it has no routes: set "
                f"algorithm.replay_routes = false"
            )
        torch_dtype: torch.dtype = getattr(torch, dtype)
        self._sharing = Sharing.of(torch.device(config.device))
        self._engine = EmbeddedEngine(
            shape,
            dtype=torch_dtype,
            device=torch.device(config.device),
            slots=config.slots,
            running_max=config.running_max,
            context_tokens=context_tokens,
            prefill_tokens_max=config.prefill_tokens_max,
            keeps_routes=keeps_routes,
        )
        manifest = Parameters(shape, torch_dtype, torch.device("meta")).manifest
        self._facts = EngineFacts(
            manifest=manifest,
            vocab_size=shape.vocab_size,
            context_tokens=context_tokens,
            returns_routes=keeps_routes,
            gpu=self._sharing.gpu,
            details={
                **self._sharing.details,
                "model_type": shape.model_type,
                "layers": shape.num_layers,
                "dtype": dtype,
                "device": config.device,
                "slots": config.slots,
                "tensors": len(manifest),
            },
        )
        self._orders: deque[Order] = deque()
        self._changed = Condition()
        self._closing = False
        self._post: Callable[[Event], None] = lambda _: None
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="stage")
        self._busy_s = 0.0

    @property
    def facts(self) -> EngineFacts:
        """Names, dtypes and shapes of the weights; sizes."""
        return self._facts

    def start(self, post: Callable[[Event], None]) -> None:
        """Start the decoding thread."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._post = post
        self._decoder.submit(self._decode).add_done_callback(self._decoding_ended)

    def order(self, order: Order) -> None:
        """Hand over an order and wake the decoding thread."""
        with self._changed:
            assert len(self._orders) < _ORDERS_MAX, f"{_ORDERS_MAX} orders wait for one step"
            self._orders.append(order)
            self._changed.notify()

    async def perform(self, work: Work) -> object:
        """Carry out work on weights; one after the other, off the event loop.

        Raises:
            EpochError: what is staged cannot be served.
        """
        loop = asyncio.get_running_loop()
        staging = self._engine.staging
        match work:
            case OpenEpoch():
                opening = partial(staging.open, work.tensors, randomize=work.randomize)
                await loop.run_in_executor(self._stager, opening)
            case StageBucket():
                await loop.run_in_executor(self._stager, staging.write, work.names, work.tensors)
            case CopyWeights():
                copy = self._sharing.copy
                await loop.run_in_executor(self._stager, copy, work, staging.copy)
            case PullWeights():
                pull = self._receiver.pull
                await loop.run_in_executor(self._stager, pull, work, staging.write)
            case ReceiveWeights():
                receive = self._receiver.receive
                await loop.run_in_executor(self._stager, receive, work, staging.write)
            case ReadDigests():
                return await loop.run_in_executor(self._stager, staging.digests, work.names)
            case DropEpoch():
                await loop.run_in_executor(self._stager, staging.drop)
            case SwitchWeights():
                await loop.run_in_executor(self._stager, staging.check, work.digest)
                done: Future[Switched] = Future()
                self.order(_Switch(work.key, work, done))
                return await asyncio.wrap_future(done)
            case _:
                raise TypeError(f"the embedded engine cannot carry out {type(work).__name__}")
        return None

    def statistics(self) -> dict[str, object]:
        """Numbers of the engine, and how busy the decoding thread was."""
        return {**self._engine.statistics(), "decode_busy_s": round(self._busy_s, 3)}

    def close(self) -> None:
        """Stop both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._decoder.shutdown()
        self._stager.submit(self._sharing.close)
        self._stager.shutdown()

    # ---- the decoding thread -------------------------------------------------------------

    def _decode(self) -> None:
        with torch.inference_mode():
            while (orders := self._next_orders()) is not None:
                started_s = time.perf_counter()
                outcomes = [ended for order in orders for ended in self._take(order)]
                if self._engine.has_work():
                    outcomes += self._engine.step()
                if outcomes:
                    self._post(WorkDone(OUTCOMES, tuple(outcomes)))
                self._busy_s += time.perf_counter() - started_s

    def _decoding_ended(self, decoding: Future[None]) -> None:
        # Nothing is computed any more: the actor must end with the reason, not fall silent.
        if (error := decoding.exception()) is not None:
            self._post(WorkDone(OUTCOMES, None, f"{type(error).__name__}: {error}"))

    def _next_orders(self) -> list[Order] | None:
        """All orders that wait; waits for one when there is nothing to compute. None: the end."""
        with self._changed:
            while not self._orders and not self._engine.has_work() and not self._closing:
                self._changed.wait()
            orders = list(self._orders)
            self._orders.clear()
        return None if self._closing else orders

    def _take(self, order: Order) -> list[Outcome]:
        match order:
            case GenerateOrder():
                return self._engine.generate(order)
            case ScoreOrder():
                return self._engine.score(order)
            case AbortOrder():
                return self._engine.abort(order.request_ids, order.session_ids)
            case ForgetOrder():
                self._engine.forget(order.session_ids)
            case _Switch():
                order.done.set_result(self._engine.switch(order.work.version, order.work.mode))
            case _:
                raise TypeError(f"the embedded engine cannot take {type(order).__name__}")
        return []
