"""Worker processes for a synchronous reward function, each call with a deadline of its own.

A call that loops, or that kills its process, costs its own trajectory and a new process, nothing
else. The deadline counts from when a worker begins the call, not from when it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Final

import msgspec

from milepost.actors.agent.processes import started
from milepost.actors.agent.reward import RewardFailed, RewardInput, RewardResult
from milepost.actors.agent.reward_worker import LENGTH_BYTES, Loaded, Scored

GONE_S: Final = 5.0
"""From the death of a process to the end of its pipe."""
LATE_S: Final = 0.25
"""A timer of a busy event loop fires late, with the answer already there: a last look at it."""
FAILURES_MAX: Final = 3
"""Starts in a row that may fail before calls fail by name."""
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
WORKER_MODULE: Final = "milepost.actors.agent.reward_worker"

log = logging.getLogger(__name__)


class RewardPool:
    """A fixed number of workers.

    A worker that cannot be replaced is tried again for ever, after pauses that grow. Meanwhile
    calls wait; but where no worker is left and `FAILURES_MAX` starts in a row have failed, they
    fail with the reason of the last one, until a start succeeds.

    Args:
        path: `module:function`.
        workers: processes.
        deadline_s: of one call.
        start_s: until a process has imported the function.
        pause_s: after the first start that failed; twice as long after each further one.
        tell: told in words that no call can be scored, and when that is over.
    """

    def __init__(
        self,
        path: str,
        *,
        workers: int,
        deadline_s: float,
        start_s: float,
        pause_s: float = PAUSE_S,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        self._path = path
        self._workers = workers
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._pause_s = pause_s
        self._tell = tell
        self._idle: list[_Worker] = []
        self._waiting: dict[asyncio.Future[_Worker], None] = {}
        """Calls without a worker, in their order; as many as episodes run, at most."""
        self._loaded: set[_Worker] = set()
        self._all: set[_Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._num_failures = 0
        """Starts that failed in a row."""
        self._broken = ""
        """Why calls fail at once; empty while they may be scored."""
        self._closing = asyncio.Event()

    async def start(self) -> None:
        """Start every worker. What fails by accident is tried again, a bad function is not.

        Raises:
            RewardFailed: the function cannot be imported, or no process comes up.
        """
        try:
            async with asyncio.TaskGroup() as starting:
                for _ in range(self._workers):
                    starting.create_task(self._start_first(), name="reward worker")
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def score(self, given: RewardInput) -> RewardResult:
        """The reward of one episode.

        Raises:
            RewardFailed: the function raised, took too long, killed its process, or returned what
                is no finite number; or no worker can be had.
        """
        frame = msgspec.msgpack.encode(given)
        while not (worker := await self._next()).is_alive:
            # It died after its last call, which is no fault of this one.
            self._replace(worker)
        try:
            scored = await worker.call(frame, self._deadline_s)
        finally:
            if worker.is_free:
                self._hand_on(worker)
            else:
                self._replace(worker)
        if scored.result is None:
            raise RewardFailed(f"reward function {self._path}: {scored.error}")
        return scored.result

    async def close(self) -> None:
        """Kill every worker; calls under way fail."""
        self._closing.set()
        self._refuse("the reward workers are being stopped")
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._all))

    # ---- handing workers out -------------------------------------------------------------

    async def _next(self) -> _Worker:
        if self._broken:
            raise RewardFailed(self._broken)
        if self._idle:
            return self._idle.pop()
        waiter: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            # Each worker is back within the deadline, and a missing one is given up by name.
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_on(waiter.result())
            raise
        finally:
            self._waiting.pop(waiter, None)

    def _hand_on(self, worker: _Worker) -> None:
        """To whoever has waited longest."""
        for waiter in list(self._waiting):
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)

    def _refuse(self, reason: str) -> None:
        """No call has a worker, and none will have one soon."""
        self._broken = reason
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(RewardFailed(reason))

    # ---- starting and replacing ----------------------------------------------------------

    async def _start_first(self) -> None:
        for number in range(FAILURES_MAX):
            try:
                await self._add()
            except _Unloadable:
                raise  # its own word: it will not import any better the next time
            except (RewardFailed, OSError) as error:
                log.warning("a reward worker did not start: %s", error)
                if number + 1 == FAILURES_MAX:
                    text = f"no reward worker started in {FAILURES_MAX} tries: {error}"
                    raise RewardFailed(text) from error
                await self._pause(number)
            else:
                return

    def _replace(self, worker: _Worker) -> None:
        self._loaded.discard(worker)
        if self._closing.is_set():
            return
        task = asyncio.create_task(self._exchange(worker), name="reward worker")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _exchange(self, worker: _Worker) -> None:
        await self._end(worker)
        while not self._closing.is_set():
            try:
                await self._add()
            except (RewardFailed, OSError) as error:
                self._failed(error)
                await self._pause(self._num_failures - 1)
            else:
                return

    def _failed(self, error: Exception) -> None:
        self._num_failures += 1
        log.warning("a reward worker did not start (%d in a row): %s", self._num_failures, error)
        if self._num_failures < FAILURES_MAX or self._loaded:
            return
        reason = f"no reward worker is left, {self._num_failures} starts in a row failed: {error}"
        is_news = not self._broken
        self._refuse(reason)
        if is_news:
            self._tell(f"{reason}; episodes fail until one starts, which goes on being tried")

    async def _pause(self, num_failures: int) -> None:
        seconds = min(self._pause_s * 2.0 ** min(num_failures, 16), PAUSE_MAX_S)
        waiting = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()

    async def _end(self, worker: _Worker) -> None:
        # Forgotten only when it is gone: `close` may stop this task, and then ends it itself.
        await worker.kill()
        self._all.discard(worker)

    async def _add(self) -> None:
        creation = asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER_MODULE, self._path),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,  # to be killed with all that the function has started
        )
        worker = _Worker(await started(creation))
        self._all.add(worker)
        loaded = await worker.loaded(self._start_s)
        if loaded.error:
            await self._end(worker)
            kind = _Unloadable if worker.has_spoken else RewardFailed
            raise kind(f"reward function {self._path} cannot be loaded: {loaded.error}")
        self._loaded.add(worker)
        self._num_failures = 0
        if self._broken and not self._closing.is_set():
            self._broken = ""
            self._tell("a reward worker has started: episodes are scored again")
        self._hand_on(worker)


class _Unloadable(RewardFailed):
    """The worker itself says that the function cannot be imported."""


class _Worker:
    """One process. A task of its own reads it, so no read is ever cancelled."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name="reward frames")
        self.is_free = True
        self.has_spoken = False
        """It came as far as a first word."""

    @property
    def is_alive(self) -> bool:
        """Its pipe is open, as far as anybody has read."""
        return not self._reading.done()

    async def loaded(self, start_s: float) -> Loaded:
        """The worker's first word."""
        done, _ = await asyncio.wait({self._answer}, timeout=start_s)
        if not done:
            return Loaded(error=f"it is still importing after {start_s} s")
        frame = self._take()
        if not frame:
            return Loaded(error=await self._end())
        self.has_spoken = True
        return msgspec.msgpack.decode(frame, type=Loaded)

    async def call(self, frame: bytes, deadline_s: float) -> Scored:
        """Score one episode; afterwards the worker is free, or has to be replaced."""
        self.is_free = False
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)
        done, _ = await asyncio.wait({self._answer}, timeout=deadline_s)
        if not done:
            done, _ = await asyncio.wait({self._answer}, timeout=LATE_S)
        late = Scored(error=f"it took longer than its deadline of {deadline_s} s")
        if not done:
            return late
        answer = self._take()
        if not answer:
            return Scored(error=await self._end())
        # The end of the pipe may have come in the same breath as the answer.
        self.is_free = self.is_alive
        scored = msgspec.msgpack.decode(answer, type=Scored)
        return scored if scored.seconds <= deadline_s else late

    async def kill(self) -> None:
        """End the process, what it has started, and its reader."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        ending = asyncio.ensure_future(self._process.wait())
        # Who has left the group of a killed process may still hold its pipe.
        _, late = await asyncio.wait({ending, self._reading}, timeout=GONE_S)
        for each in late:
            each.cancel()

    def _take(self) -> bytes:
        """The frame that came; empty when the process ended instead."""
        frame = self._answer.result()
        self._answer = asyncio.get_running_loop().create_future()
        return frame

    async def _end(self) -> str:
        ending = asyncio.ensure_future(self._process.wait())
        done, _ = await asyncio.wait({ending}, timeout=GONE_S)
        if not done:
            ending.cancel()
            return "its process has closed its pipe"
        code = ending.result()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}"

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while True:
            try:
                head = await stdout.readexactly(LENGTH_BYTES)
                frame = await stdout.readexactly(int.from_bytes(head, "little"))
            except asyncio.IncompleteReadError:
                frame = b""
            if not self._answer.done():
                self._answer.set_result(frame)
            if not frame:
                return
