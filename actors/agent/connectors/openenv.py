"""Environments of OpenEnv: a server holds the world, each episode has a session of its own in it.

Extra `openenv`. In a topology, with a server that runs already, or with one that is started here:

    [actors.agent]
    agent = "milepost.actors.agent.connectors.openenv:OpenEnvAgent"
    options = { url = "http://127.0.0.1:8000" }        # or { serve = "my_environment:app" }

Each reply of the model is a step. The action is `{action: reply}`: the text, or with
`action_is_message` the whole message, tool calls included. What the model is shown is the
observation's `messages` (a list of chat messages) or else its field `observation`, as user text.
The reward is the sum over the steps, or with `reward_is_last` the newest one. Metrics are those of
the observation's field `metrics`; the library keeps an observation's `metadata` to the server.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import Process
from typing import Any

from openenv.core import GenericEnvClient

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.errors import LimitReached
from milepost.actors.agent.processes import started
from milepost.messages.shared import ChatMessage

START_S = 60.0
END_S = 5.0
STOP_S = 5.0
BACKLOG = 512


class OpenEnvError(RuntimeError):
    """The server cannot be started, or says what cannot be used."""


class OpenEnvAgent(Agent):
    """Plays one episode of an environment behind a server.

    Args:
        url: of a server that runs already.
        serve: `module:app` of one to be started on this machine, for this agent host alone.
        action: field of the action that gets the reply.
        action_is_message: the reply's whole message, not only its text.
        observation: field of the observation that the model is shown.
        reward_is_last: the newest reward counts, not the sum.
    """

    def __init__(
        self,
        *,
        url: str = "",
        serve: str = "",
        action: str = "message",
        action_is_message: bool = False,
        observation: str = "text",
        reward_is_last: bool = False,
    ) -> None:
        if bool(url) == bool(serve):
            raise TypeError("give either url or serve")
        self._url = url
        self._serve = serve
        self._action = action
        self._action_is_message = action_is_message
        self._observation = observation
        self._reward_is_last = reward_is_last
        self._server: Process | None = None

    async def start(self) -> None:
        """Start the server, if it is ours.

        Raises:
            OpenEnvError: it does not come up.
        """
        if not self._serve:
            return
        # The port is bound here and handed over: nobody else can take it in between, and a
        # connection waits until the server accepts it.
        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listening:
            self._url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            words = ["uvicorn", self._serve, "--fd", str(listening.fileno())]
            creation = asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *words, "--log-level", "warning",
                pass_fds=(listening.fileno(),),
            )  # fmt: skip
            self._server = await started(creation)
        ended = asyncio.create_task(self._server.wait(), name="openenv server")
        came = asyncio.create_task(self._probe(), name="openenv probe")
        try:
            await asyncio.wait({ended, came}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            if not came.done() or came.exception() is not None:
                # The socket of a server that ends is closed before its end is known.
                await asyncio.wait({ended}, timeout=END_S)
                code = self._server.returncode
                why = "it does not answer" if code is None else f"it ended with code {code}"
                raise OpenEnvError(f"the server {self._serve} does not come up: {why}")
        finally:
            ended.cancel()
            came.cancel()

    async def _probe(self) -> None:
        async with GenericEnvClient(base_url=self._url, connect_timeout_s=START_S):
            return

    async def run(self, episode: Episode) -> None:
        """Reset, then step by step until the environment is done or a bound ends it."""
        reward = 0.0
        messages: list[ChatMessage] = list(episode.prompt.messages)
        async with GenericEnvClient(base_url=self._url) as world:
            entry = {"prompt_id": episode.prompt.prompt_id, "metadata": episode.metadata}
            result = await world.reset(seed=episode.seed, **entry)
            messages += self._shown(result.observation)
            episode.report(reward=0.0)
            while not result.done:
                try:
                    reply = await episode.chat(messages)
                except LimitReached:
                    return
                said = reply.message if self._action_is_message else reply.text
                result = await world.step({self._action: said})
                newest = float(result.reward or 0.0)
                reward = newest if self._reward_is_last else reward + newest
                episode.report(reward=reward, metrics=result.observation.get("metrics") or {})
                messages = [*messages, reply.message, *self._shown(result.observation)]

    def _shown(self, observation: dict[str, Any]) -> list[ChatMessage]:
        if "messages" in observation:
            return list(observation["messages"])
        text = observation.get(self._observation)
        return [{"role": "user", "content": str(text)}] if text not in (None, "") else []

    async def stop(self) -> None:
        """End the server, if it is ours."""
        server = self._server
        if server is None or server.returncode is not None:
            return
        server.terminate()
        ended = asyncio.create_task(server.wait())
        await asyncio.wait({ended}, timeout=STOP_S)
        if not ended.done():
            server.kill()
            await ended
