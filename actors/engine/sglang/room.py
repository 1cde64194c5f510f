"""Who is in the server; and memory of keys and values, given back while nobody is.

For a GPU that is shared with a trainer: a synchronous run either samples or trains. The server's
allocator (`--enable-memory-saver`) unmaps the pages of its cache and maps them again later; what
they held is gone, so prefixes are computed again. Weights stay: they are updated where they lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from milepost.actors.engine.sglang.client import Client, ServerError, ServerGoneError

CACHE: Final = {"tags": ["kv_cache"]}
IDLE_S: Final = 0.5
"""How long nobody must have been inside: the turns of a conversation follow one another."""
FLUSH_AGAIN_S: Final = 0.05
"""A request that was answered just now may still count as running for a moment."""


class Room:
    """See the module.

    Args:
        client: to the server.
        fail: told why the server's memory is in an unknown state.
        releases: give memory back at all.
        deadline_s: of each door.
        idle_s: how long nobody must have been inside.

    Attributes:
        num_inside: requests that entered and did not leave.
        num_releases: how often memory was given back.
    """

    def __init__(
        self,
        client: Client,
        fail: Callable[[str], None],
        *,
        releases: bool,
        deadline_s: float,
        idle_s: float = IDLE_S,
    ) -> None:
        self._client, self._fail = client, fail
        self._releases, self._deadline_s, self._idle_s = releases, deadline_s, idle_s
        self._lock = asyncio.Lock()
        self._released = False
        self._idle: asyncio.Task[None] | None = None
        self._num_visits = 0
        self.num_inside = 0
        self.num_releases = 0

    async def enter(self) -> None:
        """Count as inside, and wait until the cache has its memory."""
        self._num_visits += 1
        if self._releases:
            async with self._lock:
                if self._released:
                    await self._post("/resume_memory_occupation", CACHE)
                    self._released = False
        self.num_inside += 1

    def leave(self) -> None:
        """Count as outside; after the last one the memory is given back, unless others come."""
        self.num_inside -= 1
        if self._releases and not self.num_inside:
            work = self._release(self._num_visits)
            self._idle = asyncio.get_running_loop().create_task(work, name="release")

    async def flush(self) -> None:
        """Drop every prefix; nobody may be inside.

        Raises:
            ServerError: somebody still counted as inside after the deadline.
        """
        until_s = asyncio.get_running_loop().time() + self._deadline_s
        while True:
            try:
                await self._post("/flush_cache", {})
            except ServerError:
                if asyncio.get_running_loop().time() > until_s:
                    raise
                await asyncio.sleep(FLUSH_AGAIN_S)
            else:
                return

    def close(self) -> None:
        """Give nothing back any more."""
        if self._idle is not None:
            self._idle.cancel()

    async def _release(self, num_visits: int) -> None:
        await asyncio.sleep(self._idle_s)
        async with self._lock:
            if num_visits != self._num_visits:
                return
            # Whoever enters from here on waits at the lock for the memory to come back. The flush
            # comes first: a server that is told to release while somebody is inside dies of it.
            try:
                await self.flush()
                await self._post("/release_memory_occupation", CACHE)
            except (ServerError, ServerGoneError) as error:
                self._fail(f"the server did not give its memory back: {error}")
                return
            self._released = True
            self.num_releases += 1

    async def _post(self, door: str, body: dict[str, list[str]]) -> None:
        await self._client.post(door, body, deadline_s=self._deadline_s)
