"""Worker processes for a synchronous reward function, each call with a deadline of its own.

A call that loops, or that kills its process, costs its own trajectory and a new process, nothing
else. The deadline counts from when a worker begins the call, not from when it was asked for.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final

import msgspec

from milepost.actors.agent.processes import started
from milepost.actors.agent.reward import RewardFailed, RewardInput, RewardResult
from milepost.actors.agent.reward_worker import LENGTH_BYTES, Loaded, Scored

LATE_S: Final = 0.25
"""A timer of a busy event loop fires late, with the answer already there: a last look at it."""
WORKER_MODULE: Final = "milepost.actors.agent.reward_worker"


class RewardPool:
    """A fixed number of workers.

    Args:
        path: `module:function`.
        workers: processes.
        deadline_s: of one call.
        start_s: until a process has imported the function.
    """

    def __init__(self, path: str, *, workers: int, deadline_s: float, start_s: float) -> None:
        self._path = path
        self._workers = workers
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue(workers)
        """None stands in the place of a worker that could not be replaced, and stays there."""
        self._all: set[_Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._broken = ""
        """Why no worker can be started any more."""
        self._closed = False

    async def start(self) -> None:
        """Start every worker.

        Raises:
            RewardFailed: the function cannot be imported.
        """
        await asyncio.gather(*(self._add() for _ in range(self._workers)))

    async def score(self, given: RewardInput) -> RewardResult:
        """The reward of one episode.

        Raises:
            RewardFailed: the function raised, took too long, killed its process, or returned what
                is no finite number.
        """
        frame = msgspec.msgpack.encode(given)
        if self._broken:
            raise RewardFailed(self._broken)
        # As many wait here as episodes run, and each worker is back within the deadline.
        worker = await self._idle.get()
        if worker is None:
            self._idle.put_nowait(None)
            raise RewardFailed(self._broken)
        try:
            scored = await worker.call(frame, self._deadline_s)
        finally:
            if worker.is_free:
                self._idle.put_nowait(worker)
            else:
                self._replace(worker)
        if scored.result is None:
            raise RewardFailed(f"reward function {self._path}: {scored.error}")
        return scored.result

    async def close(self) -> None:
        """Kill every worker; calls under way fail."""
        self._closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._all))

    def _replace(self, worker: _Worker) -> None:
        if self._closed:
            return
        self._all.discard(worker)
        task = asyncio.create_task(self._exchange(worker), name="reward worker")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _exchange(self, worker: _Worker) -> None:
        await worker.kill()
        try:
            await self._add()
        except (RewardFailed, OSError) as error:
            self._broken = str(error)
            self._idle.put_nowait(None)

    async def _add(self) -> None:
        creation = asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", WORKER_MODULE, self._path, stdin=PIPE, stdout=PIPE
        )
        worker = _Worker(await started(creation))
        self._all.add(worker)
        loaded = await worker.loaded(self._start_s)
        if loaded.error:
            await worker.kill()
            raise RewardFailed(f"reward function {self._path} cannot be loaded: {loaded.error}")
        self._idle.put_nowait(worker)


class _Worker:
    """One process. A task of its own reads it, so no read is ever cancelled."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name="reward frames")
        self.is_free = True

    async def loaded(self, start_s: float) -> Loaded:
        """The worker's first word."""
        done, _ = await asyncio.wait({self._answer}, timeout=start_s)
        if not done:
            return Loaded(error=f"it is still importing after {start_s} s")
        frame = self._take()
        return (
            msgspec.msgpack.decode(frame, type=Loaded) if frame else Loaded(error=await self._end())
        )

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
        self.is_free = True
        scored = msgspec.msgpack.decode(answer, type=Scored)
        return scored if scored.seconds <= deadline_s else late

    async def kill(self) -> None:
        """End the process and its reader."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    def _take(self) -> bytes:
        """The frame that came; empty when the process ended instead."""
        frame = self._answer.result()
        self._answer = asyncio.get_running_loop().create_future()
        return frame

    async def _end(self) -> str:
        code = await self._process.wait()
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
