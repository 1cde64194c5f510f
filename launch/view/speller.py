"""Token ids as text: asks a process that has the run's tokenizer, since this one loads none.

The process (`milepost.actors.session.text.spelling`) is started when the first row of a model is
opened, and ends with its standard input, that is with us at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from milepost.actors.agent.processes import kill_all, started
from milepost.configs.run import ModelConfig

ANSWER_S: Final = 60.0
"""For the greeting, too: reading a large tokenizer takes seconds on a busy machine."""
OPEN_MAX: Final = 3
"""Tokenizers in memory at once."""
HEAD: Final = struct.Struct("<I")
TOKENIZER: Final = "tokenizer.json"
MODULE: Final = "milepost.actors.session.text.spelling"


def tokenizer_folder(run: Path, model: ModelConfig | None) -> Path | None:
    """Where a run's tokenizer lies, if it does; its hash is for whoever uses it to compare.

    Args:
        run: folder of the run.
        model: of its topology.
    """
    places = [model.folder] if model is not None and model.path else []
    places += [run / "initial_model", *sorted(run.glob("checkpoints/step_*/hf"))]
    return next((place for place in places if (place / TOKENIZER).is_file()), None)


class Question(Struct, frozen=True, kw_only=True):
    """As `milepost.actors.session.text.spelling.Question`, whose module loads a tokenizer."""

    token_ids: list[int]
    start: int
    end: int
    mismatch: str = ""


class Place(Struct, frozen=True):
    """As `milepost.actors.session.text.spelling.Place`."""

    start: int
    end: int
    first: int


class Spelling(Struct, frozen=True, kw_only=True):
    """As `milepost.actors.session.text.spelling.Spelling`; or why there is none."""

    pieces: list[str | None] | None = None
    special: list[int] = []
    mismatch: Place | None = None
    error: str = ""


class Greeting(Struct, frozen=True, kw_only=True):
    """As `milepost.actors.session.text.spelling.Speller`."""

    content_hash: str = ""
    error: str = ""


class Spellers:
    """One process for each model whose rows were opened last.

    Args:
        answer_s: how long one answer may take.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._open: OrderedDict[Path, _Speller] = OrderedDict()

    async def spell(self, folder: Path, content_hash: str, question: Question) -> Spelling:
        """The text of one row's tokens.

        Args:
            folder: with the tokenizer of the run's model.
            content_hash: of the tokenizer that the row was made with.
            question: the row.

        Returns:
            Its text; or only an error, when that tokenizer cannot be had.
        """
        speller = self._open.get(folder)
        if speller is None:
            speller = self._open[folder] = _Speller(folder, self._answer_s)
        self._open.move_to_end(folder)
        if len(self._open) > OPEN_MAX:
            await self._open.popitem(last=False)[1].close()
        answer = await speller.ask(content_hash, question)
        # Whoever waited for the same one may have put another in its place meanwhile.
        if speller.is_over and self._open.get(folder) is speller:
            del self._open[folder]
        return answer

    async def close(self) -> None:
        """End all processes."""
        for speller in self._open.values():
            await speller.close()
        self._open.clear()


class _Speller:
    """The process of one model; questions are asked one after the other."""

    def __init__(self, folder: Path, answer_s: float) -> None:
        self._folder = folder
        self._answer_s = answer_s
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._greeting = Greeting()
        self._is_late = False
        self.is_over = False

    async def ask(self, content_hash: str, question: Question) -> Spelling:
        """See `Spellers.spell`."""
        async with self._turn:
            if self.is_over:
                return Spelling(error="the process that spells tokens has just ended, try again")
            if self._process is None:
                await self._start()
            if self._greeting.error:
                return Spelling(error=self._greeting.error)
            if content_hash and self._greeting.content_hash != content_hash:
                return Spelling(
                    error=f"the tokenizer in {self._folder} has the hash "
                    f"{self._greeting.content_hash}, the row was made with {content_hash}"
                )
            answer: Spelling | None = await self._exchange(msgspec.json.encode(question), Spelling)
            if answer is not None:
                return answer
            late = f"gave no answer in {self._answer_s:g} s"
            why = late if self._is_late else "ended before it answered, try again"
            return Spelling(error=f"the process that spells tokens {why}")

    async def close(self) -> None:
        """End the process; whoever waits for an answer gets none."""
        self._kill()
        async with self._turn:
            await self._reap()

    async def _start(self) -> None:
        self._process = await started(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", MODULE, str(self._folder)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
            )
        )
        greeting = await self._exchange(b"", Greeting)
        told = f"no tokenizer could be read from {self._folder}"
        self._greeting = greeting or Greeting(error=told)
        if self._greeting.error:
            self._kill()
            await self._reap()

    async def _exchange(self, question: bytes, answer_type: Any) -> Any:
        """The answer, or None when there is none in time: then the process is over."""
        task = asyncio.create_task(self._talk(question), name="speller")
        await asyncio.wait({task}, timeout=self._answer_s)
        if not task.done():
            self._is_late = True
            self._kill()  # its output ends, and with it the task
        answer = await task
        if answer is None:
            self._kill()
            await self._reap()
            return None
        return msgspec.json.decode(answer, type=answer_type)

    def _kill(self) -> None:
        self.is_over = True
        if self._process is not None:
            kill_all(self._process)

    async def _reap(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        await process.stdout.read()
        await process.wait()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await process.stdin.wait_closed()

    async def _talk(self, question: bytes) -> bytes | None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if question:
                process.stdin.write(HEAD.pack(len(question)) + question)
                await process.stdin.drain()
            (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            return await process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
            return None
