"""The engine's orders, carried out by an SGLang server.

Each request is one task on the event loop that waits for one answer of the server. A gate stands
before the server: while weights change nobody new passes it. Whatever leaves the server's state in
doubt (it is gone, silent, or failed half-way through an update) ends the actor by name; its
supervisor starts another, and the publisher brings the weights.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from milepost.actors.effects import Event, Work, WorkDone
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    DropEpoch,
    EngineFacts,
    ForgetOrder,
    GenerateOrder,
    OpenEpoch,
    Order,
    Outcome,
    Progress,
    PullWeights,
    Rejected,
    ScoreFinished,
    ScoreOrder,
    StageBucket,
    SwitchWeights,
)
from milepost.actors.engine.receiving import Receiver
from milepost.actors.engine.sglang.client import Client, ServerError, ServerGoneError
from milepost.actors.engine.sglang.flights import Flight
from milepost.actors.engine.sglang.health import Health
from milepost.actors.engine.sglang.started import Started
from milepost.actors.engine.sglang.switching import Switching
from milepost.actors.engine.sglang.wire import (
    AnswerError,
    Manner,
    begins_with,
    generate_body,
    is_cut,
    refusal,
    routes_wanted,
    sampled,
    score_body,
    scored,
    token_ids_of,
)

ABORT_AGAIN_S: Final = 0.2
"""The server forgets an abort that overtakes its request, so it is said until the request ends."""
ABORT_S: Final = 60.0


class SGLangBackend:
    """`Backend` that asks a server.

    Args:
        started: the server, and what was found out about it.
        receiver: takes whole versions in.
    """

    def __init__(self, started: Started, receiver: Receiver) -> None:
        self._started, self._receiver = started, receiver
        self._capabilities = started.capabilities
        self._post: Callable[[Event], None] = lambda _: None
        self._flights: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_named = 0
        self._generated, self._prefilled, self._cached = 0, 0, 0
        self._drafts = np.zeros(3, np.int64)
        self._failed = False

    @property
    def facts(self) -> EngineFacts:
        """Names, dtypes and shapes of the weights; sizes; the server's version."""
        return self._started.facts

    def start(self, post: Callable[[Event], None]) -> None:
        """Open the client and begin to watch the server."""
        self._post = post
        self._client = Client(self._started.url)
        self._switching = Switching(self._started, self._client, self._abort_all, self._fail)
        self._health = Health(self._started, self._client, self._switching.pauses)
        self._spawn(self._watch(), "watch")

    def order(self, order: Order) -> None:
        """Hand an order to a task of its own."""
        match order:
            case GenerateOrder():
                self._take(order)
            case ScoreOrder():
                self._spawn(self._score(order), order.key)
            case AbortOrder():
                for flight in list(self._flights.values()):
                    asked = flight.order
                    if asked.key in order.request_ids or asked.session_id in order.session_ids:
                        flight.aborted = True
                        self._spawn(self._abort(flight), f"abort {asked.key}")
            case ForgetOrder():
                # The server has no door for it: its tree drops what was not used for longest.
                pass
            case _:
                raise TypeError(f"an SGLang engine cannot take {type(order).__name__}")

    async def perform(self, work: Work) -> object:
        """Carry out work on weights.

        Raises:
            EpochError: what is staged cannot be served.
        """
        match work:
            case OpenEpoch() | StageBucket() | DropEpoch():
                await self._switching.stage(work)
                return None
            case PullWeights():
                await self._switching.stage_whole(partial(self._receiver.pull, work))
                return None
            case SwitchWeights():
                try:
                    return await self._switching.switch(work)
                except (ServerError, ServerGoneError) as error:
                    self._fail(f"version {work.version} did not reach the server whole: {error}")
                    raise
                finally:
                    # Whatever else it was: behind a closed gate every request would wait for ever.
                    if self._switching.pauses():
                        told = f"version {work.version} did not reach the server whole"
                        self._fail(f"{told}: {sys.exc_info()[1]}")
            case _:
                raise TypeError(f"an SGLang engine cannot carry out {type(work).__name__}")

    def statistics(self) -> dict[str, object]:
        """Counts of this actor, and what the server last said of itself."""
        return {
            "version": self._switching.version,
            "generated_tokens": self._generated,
            "prefilled_tokens": self._prefilled,
            "prefix_tokens": self._cached,
            "memory_releases": self._switching.room.num_releases,
            "draft_tokens": int(self._drafts[0]),
            "draft_tokens_accepted": int(self._drafts[1]),
            "draft_passes": int(self._drafts[2]),
            **self._health.load,
        }

    def close(self) -> None:
        """Stop the server if it is ours, and let every request go."""
        for task in self._tasks:
            task.cancel()
        self._switching.close()
        if self._started.server is not None:
            self._started.server.close()
        closing = asyncio.get_running_loop().create_task(self._client.close())
        self._tasks.add(closing)

    # ---- requests ------------------------------------------------------------------------

    def _take(self, order: GenerateOrder) -> None:
        row, facts = order.token_ids, self.facts
        if reason := row_fault(row, facts.vocab_size) or self._unsupported(order):
            self._give(Rejected(order.key, reason))
            return
        room = facts.context_tokens - len(row)
        if room < 1:
            reason = f"{len(row)} tokens leave no room in a context of {facts.context_tokens}"
            self._give(Rejected(order.key, reason))
            return
        flight = Flight(order, min(order.sampling.tokens_max, room))
        # Known from here on, so that an abort that follows at once finds it.
        self._flights[order.key] = flight
        self._spawn(self._generate(flight), order.key)

    async def _generate(self, flight: Flight) -> None:
        key = flight.order.key
        try:
            outcome = await self._guarded(key, self._fly(flight))
        finally:
            del self._flights[key]
        if outcome is not None:
            self._give(outcome)

    async def _fly(self, flight: Flight) -> Outcome:
        order = flight.order
        ended = False
        while not ended:
            async with self._switching.passing():
                if flight.aborted:
                    break
                version = self._switching.version
                flight.name = self._name(order.key)
                left = flight.tokens_max - flight.num_tokens
                row = flight.row
                wanted = routes_wanted(order, row, self._started.shape)
                body = generate_body(order, row, left, flight.name, self._manner(), wanted)
                answer = await self._answer(flight, body, version)
                if reason := refusal(answer):
                    return Rejected(order.key, reason)
                if self._is_overtaken(answer, version):
                    continue
                part = sampled(answer, order.sampling, wanted)
                ended = flight.take(part, version, has_spans=self._capabilities.spans)
                self._count(part.cached_tokens, len(order.token_ids), len(part.token_ids))
                self._drafts += part.drafts
        return flight.finished(keeps_caches=self._switching.keeps_caches)

    def _is_overtaken(self, answer: dict[str, Any], version: int) -> bool:
        """Weights changed in place while it was on its way, before its first token.

        Its prompt met caches of the version before, and no token of its own tells: ask once more.
        A publication that is taken back changes them, too: to a version with a smaller number.
        """
        first = begins_with(answer)
        return self._switching.keeps_caches and first is not None and first != version

    async def _answer(self, flight: Flight, body: dict[str, Any], version: int) -> dict[str, Any]:
        """The server's answer, whole; on the way, what is sampled goes to who wants to see it."""
        if not flight.order.stream:
            answer: dict[str, Any] = await self._client.post("/generate", body, deadline_s=None)
            return answer
        answer, told = {}, 0
        async for answer in self._client.stream("/generate", body):
            token_ids = token_ids_of(answer)[told:]
            told += len(token_ids)
            if len(token_ids) and not self._is_overtaken(answer, version):
                self._give(Progress(flight.order.key, token_ids))
        if not answer:
            raise AnswerError("a streamed reply without a piece")
        return answer

    async def _score(self, order: ScoreOrder) -> None:
        vocabulary, context = self.facts.vocab_size, self.facts.context_tokens
        faults = [row_fault(row, vocabulary) for row in order.rows]
        faults += [
            f"a row of {len(r)} tokens, {context} fit" for r in order.rows if len(r) > context
        ]
        if order.temperature != 1:
            faults.append(f"SGLang scores at temperature 1, not {order.temperature}")
        if reason := next(filter(None, faults), ""):
            self._give(Rejected(order.key, reason))
            return
        outcome = await self._guarded(order.key, self._scored(order))
        if outcome is not None:
            self._give(outcome)

    async def _scored(self, order: ScoreOrder) -> Outcome:
        """All rows under one version: a publication in between starts it over."""
        vocabulary = self.facts.vocab_size
        while True:
            async with self._switching.passing():
                epoch, version = self._switching.epoch, self._switching.version
                body = score_body(order, self._name(order.key), self._manner().prefixes)
                answers = await self._client.post("/generate", body, deadline_s=None)
            if epoch == self._switching.epoch:
                break
        for answer in answers:
            if reason := refusal(answer):
                return Rejected(order.key, reason)
        rows = tuple(
            scored(answer, row, vocabulary) for answer, row in zip(answers, order.rows, strict=True)
        )
        return ScoreFinished(order.key, rows, version)

    async def _guarded(self, key: str, asking: Coroutine[Any, Any, Outcome]) -> Outcome | None:
        """The outcome; None when the server is gone, which is nobody's request's fault."""
        try:
            return await asking
        except AnswerError as error:
            return Rejected(key, f"the server's answer is wrong: {error}")
        except ServerError as error:
            return Rejected(key, error.text)
        except ServerGoneError as error:
            self._fail(str(error))
            return None

    async def _abort(self, flight: Flight) -> None:
        until_s = time.monotonic() + ABORT_S
        while self._flights.get(flight.order.key) is flight and time.monotonic() < until_s:
            if flight.name:
                await self._say_abort(flight.name)
            await asyncio.sleep(ABORT_AGAIN_S)

    async def _abort_all(self) -> None:
        """End every part in the server; their flights go on behind the gate."""
        flying = [flight for flight in self._flights.values() if flight.name]
        for flight in flying:
            flight.split = True
        await asyncio.gather(*(self._say_abort(flight.name) for flight in flying))

    async def _say_abort(self, name: str) -> None:
        try:
            await self._client.post("/abort_request", {"rid": name}, deadline_s=ABORT_S)
        except (ServerError, ServerGoneError) as error:
            self._fail(f"{name} could not be aborted: {error}")

    # ---- small parts ---------------------------------------------------------------------

    def _manner(self) -> Manner:
        ours = self._started.config
        return Manner(
            prefixes=f"{self._started.token}/{self._switching.epoch}",
            seeded=ours.deterministic,
            ranks=self._started.parallel.data_ranks,
            vocab_size=self.facts.vocab_size,
        )

    def _unsupported(self, order: GenerateOrder) -> str:
        if (
            order.sampling.min_p
            and order.sampling.temperature
            and self._started.config.deterministic
        ):
            return (
                "SGLang cannot draw with min-p and a seed (it dies of it), leave deterministic out"
            )
        if is_cut(order.sampling) and not self._capabilities.cut_logprobs:
            version = self._capabilities.version
            return f"SGLang {version} has no log-probs after top-p, top-k or min-p (0.5.21 has)"
        return ""

    def _name(self, key: str) -> str:
        self._num_named += 1
        return f"{self._started.token}/{key}/{self._num_named}"

    def _count(self, cached: int, prompt: int, generated: int) -> None:
        self._cached += cached
        self._prefilled += max(0, prompt - cached)
        self._generated += generated

    def _give(self, outcome: Outcome) -> None:
        self._post(WorkDone(OUTCOMES, (outcome,)))

    async def _watch(self) -> None:
        self._fail(await self._health.until_failed())

    def _fail(self, reason: str) -> None:
        """End the actor, once."""
        if self._failed:
            return
        self._failed = True
        if (server := self._started.server) is not None:
            # The last line of what a process says is what people are told first.
            reason = f"{server.log_path.name} ends:\n{server.log_tail()}\n{reason}"
        self._post(WorkDone(OUTCOMES, None, reason))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"{task.get_name()}: {type(error).__name__}: {error}")


def row_fault(row: NDArray[np.int32], vocab_size: int) -> str:
    """Why a row cannot be computed: an id outside the vocabulary would kill the server."""
    if not len(row):
        return "the row is empty"
    low, high = int(row.min()), int(row.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        return f"token id {wrong} is outside the vocabulary of {vocab_size}"
    return ""
