"""From one version of weights to the next, with requests in flight.

    the release keeps requests through the change        it does not
    pause (retract or in place)                          end every request, keep its tokens
    push the weights                                     push the weights
    go on                                                ask for the rest of each request

Prefixes have a name space for each change (`epoch`): what was cached before it answers no request
that comes after it, in any mode, not even when an old version number comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from milepost.actors.engine.interface import (
    DropEpoch,
    OpenEpoch,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.actors.engine.receiving import Stage
from milepost.actors.engine.sglang.client import Client, ServerError, ServerGoneError
from milepost.actors.engine.sglang.room import Room
from milepost.actors.engine.sglang.staging import Staging
from milepost.actors.engine.sglang.started import Started, make_update
from milepost.actors.engine.sglang.updates import Push, Session, UpdateError
from milepost.messages.engine import PauseMode

AGAIN_S: Final = 0.2


class Switching:
    """The gate before the server, and what happens behind it.

    Args:
        started: the server.
        client: to it.
        abort_all: ends every request in the server, to be asked for again.
        fail: told why the server cannot be used any more.

    Attributes:
        version: that serves; -1 before the first.
        epoch: number of changes so far.
        keeps_caches: requests may have gone on in place, with the keys and values they had.
    """

    def __init__(
        self,
        started: Started,
        client: Client,
        abort_all: Callable[[], Awaitable[None]],
        fail: Callable[[str], None],
    ) -> None:
        self._started, self._client, self._abort_all = started, client, abort_all
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="stage")
        self._staging = Staging(started.staging_device)
        self._deadline_s = started.config.update_s
        session = Session(client, started.capabilities, self._deadline_s)
        self._update = make_update(started, session, self._stager)
        self._open = asyncio.Event()
        self._open.set()
        self._left = asyncio.Event()
        self.room = Room(
            client, fail, releases=started.config.release_memory, deadline_s=self._deadline_s
        )
        self._is_switching = False
        self.version = -1
        self.epoch = 0
        self.keeps_caches = False

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait at the gate, then count as inside the server."""
        while True:
            await self._open.wait()
            await self.room.enter()
            if self._open.is_set():
                break
            # It closed while the cache got its memory back: whoever changes weights went first.
            self.room.leave()
            self._left.set()
        try:
            yield
        finally:
            self.room.leave()
            self._left.set()

    def pauses(self) -> bool:
        """Whether the server is silent for a reason of ours."""
        return self._is_switching

    async def stage(self, work: OpenEpoch | StageBucket | DropEpoch) -> None:
        """Take a version in, off the event loop.

        Raises:
            EpochError: a tensor that is not wanted.
        """
        loop = asyncio.get_running_loop()
        match work:
            case OpenEpoch():
                await loop.run_in_executor(self._stager, self._staging.open, work.tensors)
            case StageBucket():
                staged = self._staging.write
                await loop.run_in_executor(self._stager, staged, work.names, work.tensors)
            case DropEpoch():
                await loop.run_in_executor(self._stager, self._staging.drop)

    async def stage_whole(self, bring: Callable[[Stage], None]) -> None:
        """Let somebody stage every tensor of the open version, off the event loop.

        Raises:
            EpochError: it cannot be brought, or has a tensor that is not wanted.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._stager, bring, self._staging.write)

    async def switch(self, work: SwitchWeights) -> Switched:
        """Serve what was staged.

        Raises:
            EpochError: it is not what the digest says; the old version serves.
            ServerError, ServerGoneError: the server's weights are not known any more.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._stager, self._staging.check, work.digest)
        await self._update.prepare(self._staging.named())
        # A visitor, too: the server has its memory as long as it is here.
        await self.room.enter()
        try:
            return await self._switch(work)
        finally:
            self.room.leave()

    async def _switch(self, work: SwitchWeights) -> Switched:
        num_in_flight = self.room.num_inside - 1
        lives = self._started.capabilities.lives_through(
            work.mode,
            keeps_routes=self._started.facts.returns_routes,
            stages=self._started.parallel.stages,
        )
        flush = work.mode is PauseMode.RETRACT
        self._open.clear()
        self._is_switching = True
        paused_s = time.perf_counter()
        try:
            if lives:
                await self._post("/pause_generation", {"mode": str(work.mode)})
                await self._update.push(Push(work.version, flush))
            else:
                await self._empty()
                await self._update.push(Push(work.version, flush=False))
            # What waits at the gate goes on with the name space of the new version.
            self.version = work.version
            self.epoch += 1
            self.keeps_caches = self.keeps_caches or (lives and not flush)
            if lives:
                await self._post("/continue_generation", {})
        # Whatever fails here, the gate stays closed: half of a version may serve behind it, and the
        # actor ends.
        except UpdateError as error:
            raise ServerError("update", 400, str(error)) from error
        except (ServerError, ServerGoneError):
            raise
        except (RuntimeError, OSError) as error:
            raise ServerGoneError(f"weights failed on their way: {error}") from error
        self._is_switching = False
        self._open.set()
        pause_s = time.perf_counter() - paused_s
        return Switched(pause_s, num_in_flight, await self._let_go())

    def close(self) -> None:
        """Stop the stager."""
        self._update.close()
        self.room.close()
        self._stager.shutdown(wait=False)

    async def _let_go(self) -> str:
        """Forget what was staged; why not, if that fails. The new version serves all the same."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._stager, self._staging.drop)
        except (RuntimeError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def _empty(self) -> None:
        """End what is in the server, and drop every prefix."""
        until_s = time.monotonic() + self._deadline_s
        while self.room.num_inside > 1:
            self._left.clear()
            await self._abort_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._left.wait()
            if time.monotonic() > until_s:
                raise ServerGoneError(
                    f"{self.room.num_inside - 1} requests did not end when aborted"
                )
        await self.room.flush()

    async def _post(self, door: str, body: dict[str, str]) -> None:
        await self._client.post(door, body, deadline_s=self._deadline_s)
