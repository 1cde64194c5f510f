"""A program as an agent: it talks to the model over HTTP, in any language, and knows nothing of us.

Needs `[actors.session.http]`. In a topology:

    [actors.agent]
    agent = "milepost.actors.agent.connectors.command:CommandAgent"
    options = { command = ["bash", "clients/bash/agent.sh"] }

The program gets the prompt as JSON (`messages`, `tools`, `label`, `metadata`, `seed`) on standard
input, and the model's address in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, with keys that are not
looked at. Exit code 0 and a last line `{"reward": 1.0, "metrics": {...}}` end it well.

A harness that exists already takes its task as an argument, and prints what it likes:

    options = { command = ["my-harness", "--task", "{prompt}"], prints_result = false }

`{prompt}` is the text of the prompt's last message; the reward is then that of `data.reward`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE
from typing import Final

import msgspec
from msgspec import Struct

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.processes import started
from milepost.actors.session.validation import check_messages

GONE_S: Final = 5.0
"""How long the output of a killed command may still be on its way."""
OUTPUT_BYTES_MAX: Final = 1 << 20
WORDS_MAX: Final = 500
PLACE: Final = "{prompt}"


class CommandError(RuntimeError):
    """The program failed, or what it said is no result."""


class CommandResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Last line of its output."""

    reward: float | None = None
    """None when the run has a reward function of its own."""
    metrics: dict[str, float] = {}


class CommandAgent(Agent):
    """Runs one process for each episode.

    Args:
        command: program and arguments; `{prompt}` in them is the text of the last message.
        prints_result: its last line is a result; else what it prints means nothing.

    Raises:
        TypeError: the command is empty, or no list of words.
    """

    def __init__(self, command: list[str], *, prints_result: bool = True) -> None:
        is_list = isinstance(command, list | tuple)
        if not (is_list and command and all(isinstance(word, str) for word in command)):
            raise TypeError(f"command is {command!r}, a program and its arguments are needed")
        self._command = command
        self._prints_result = prints_result

    async def run(self, episode: Episode) -> None:
        """One process, from the prompt to its last line.

        Raises:
            CommandError: no HTTP door, a bad end, or no result.
            OSError: it cannot be started.
        """
        if not episode.address:
            raise CommandError("sessions have no HTTP door, add [actors.session.http]")
        # Like each sandbox and reward worker, it is of a group of its own and dies as one.
        creation = asyncio.create_subprocess_exec(
            *self._words(episode), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True,
            limit=OUTPUT_BYTES_MAX, env=_environment(episode.address),
        )  # fmt: skip
        process = await started(creation)
        talk = asyncio.create_task(process.communicate(_prompt(episode)), name="command")
        try:
            out, err = await asyncio.shield(talk)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # A pipe may outlive its killed process, in the hands of one that it gave it to.
            await asyncio.wait({talk}, timeout=GONE_S)
            talk.cancel()
        if process.returncode != 0:
            told = err.decode(errors="replace").strip()[-WORDS_MAX:]
            raise CommandError(f"{self._command[0]} ended with code {process.returncode}: {told}")
        if not self._prints_result:
            return
        line = out.strip().rpartition(b"\n")[2]
        try:
            result = msgspec.json.decode(line, type=CommandResult)
        except msgspec.MsgspecError as error:
            said = line.decode(errors="replace")[:WORDS_MAX]
            raise CommandError(f"its last line is no result ({error}): {said!r}") from error
        episode.report(reward=result.reward, metrics=result.metrics)

    def _words(self, episode: Episode) -> list[str]:
        [last] = check_messages(episode.prompt.messages[-1:])  # joins parts of text
        text = str(last.get("content") or "")
        return [word.replace(PLACE, text) for word in self._command]


def _environment(address: str) -> dict[str, str]:
    return {
        **os.environ,
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_KEY": "unused",
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "unused",
    }


def _prompt(episode: Episode) -> bytes:
    prompt = episode.prompt
    return msgspec.json.encode(
        {
            "messages": prompt.messages,
            "tools": prompt.tools,
            "label": prompt.label,
            "metadata": prompt.metadata,
            "seed": episode.seed,
        }
    )
