"""Whether the server still works, judged by its scheduler; and how much room it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from milepost.actors.engine.sglang.client import Client, ServerError, ServerGoneError
from milepost.actors.engine.sglang.started import Started

LOOK_S: Final = 1.0


class Health:
    """Looks at the server until it fails.

    `/health` judges the front and a request of its own, and stays silent while generation pauses.
    `/server_info` is answered by the scheduler itself between two steps, paused or not.

    Args:
        started: the server.
        client: to it.
        pauses: whether it is silent for a reason of ours.

    Attributes:
        load: what the server last said of itself, for the heartbeat.
    """

    def __init__(self, started: Started, client: Client, pauses: Callable[[], bool]) -> None:
        self._started, self._client, self._pauses = started, client, pauses
        self._silence_s = started.config.silence_s
        self.load: dict[str, object] = {}

    async def until_failed(self) -> str:
        """Return why the server failed."""
        heard_s = time.monotonic()
        while True:
            server = self._started.server
            if server is not None and (code := server.exit_code()) is not None:
                return f"the server ended with exit code {code}"
            if self._pauses():
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > self._silence_s / 3:
                try:
                    await self._client.get("/server_info", deadline_s=self._silence_s)
                except (ServerError, ServerGoneError) as error:
                    if not self._pauses():
                        return f"the server's scheduler is silent: {error}"
                heard_s = time.monotonic()
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            answer = await self._client.get("/v1/loads?include=core", deadline_s=self._silence_s)
        except (ServerError, ServerGoneError):
            return  # a number less; whether the server works is judged above
        self.load = load_of(answer["loads"])


def load_of(ranks: list[dict[str, Any]]) -> dict[str, object]:
    """The heartbeat's words for `/v1/loads`; tokens of all data-parallel ranks together."""

    def total(name: str) -> int:
        return sum(int(rank.get(name, 0)) for rank in ranks)

    room = total("max_total_num_tokens")
    return {
        "running": total("num_running_reqs"),
        "waiting": total("num_waiting_reqs"),
        "cache_tokens_max": room,
        "cache_tokens_free": room - total("num_used_tokens"),
    }
