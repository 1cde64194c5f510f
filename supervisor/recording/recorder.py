"""Writes metrics.jsonl, events.jsonl and TensorBoard files, off the event loop and in order."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any, Final

import orjson

from milepost.messages.supervisor import EventReported, StepRecorded
from milepost.supervisor.cleanup.registry import append_whole
from milepost.supervisor.cleanup.unfinished import EVENTS, METRICS, OPEN_STEP, write_open_step
from milepost.supervisor.recording.eventfile import EventFile
from milepost.supervisor.recording.resume import drop_superseded
from milepost.supervisor.recording.steps import OpenStep, steps_done

PENDING_MAX: Final = 1024
"""Records waiting for the disk; above it the supervisor takes no further messages."""
NOT_FINITE: Final = "not_finite"
"""Kind of the event that names metrics without a finite value; such a value is null."""


class Files:
    """The open files. Blocking; used by one thread at a time.

    Args:
        run_folder: where they lie; existing ones are appended to.
        tensorboard: whether event files are written, too.
        resume_step: steps trained at the checkpoint that this run goes on from; records of later
            ones are taken out.
    """

    def __init__(
        self, run_folder: Path, *, tensorboard: bool, resume_step: int | None = None
    ) -> None:
        self._run_folder = run_folder
        reopened = None if resume_step is None else drop_superseded(run_folder, resume_step)
        self._open = OpenStep(reopened)
        self._closed: deque[dict[str, Any]] = deque()
        self._metrics = (run_folder / METRICS).open("ab", buffering=0)
        self._events = (run_folder / EVENTS).open("ab", buffering=0)
        folder = run_folder / "tensorboard"
        # The step that the checkpoint was taken after stands; what comes behind it is void.
        purge_step = resume_step + 1 if resume_step else resume_step
        self._board = EventFile(folder, time.time(), purge_step) if tensorboard else None

    def step(self, message: StepRecorded, wall_s: float) -> EventReported | None:
        """Merge what was said into the object of its step, and write the one that it closes.

        Returns:
            The event to be reported when a value is not finite.
        """
        finite = {name: x for name, x in message.metrics.items() if math.isfinite(x)}
        strange = {name: x for name, x in message.metrics.items() if name not in finite}
        closed = self._open.add(message, message.metrics | dict.fromkeys(strange), wall_s)
        if closed is not None:
            self._closed.append(closed)
        self._write_closed()
        step = steps_done(message.step, message.metrics)
        if self._board is not None and finite:
            self._board.scalars(step, finite, wall_s)
        if not strange:
            return None
        text = f"step {step}: " + ", ".join(f"{k} is {v}" for k, v in strange.items())
        return EventReported(source=message.source, kind=NOT_FINITE, text=text)

    def _write_closed(self) -> None:
        while self._closed:
            _append(self._metrics, self._closed[0])
            self._closed.popleft()

    def keep_open_step(self) -> None:
        """Put what the open object has on disk, for the case that this process is killed."""
        if self._open.fields is not None:
            write_open_step(self._run_folder, self._open.fields)

    def complete_step(self) -> None:
        """Write the object that is open: nobody will say more of its step.

        Raises:
            OSError: the disk did not take it.
        """
        self._write_closed()
        if self._open.fields is not None:
            _append(self._metrics, self._open.fields)
            self._open.fields = None
            (self._run_folder / OPEN_STEP).unlink(missing_ok=True)

    def event(self, message: EventReported, wall_s: float) -> None:
        """Write one event."""
        line = {
            "time": round(wall_s, 3),
            "source": message.source,
            "kind": message.kind,
            "text": message.text,
            "values": message.values,
        }
        _append(self._events, line)

    def close(self) -> None:
        """Write the object that is open, and close all of them.

        Raises:
            OSError: the disk did not take it.
        """
        with ExitStack() as stack:
            for file in (self._metrics, self._events, self._board):
                if file is not None:
                    stack.callback(file.close)
            self.complete_step()


class Recorder:
    """Hands records to `Files` on a thread of its own.

    Args:
        files: where to.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pending: deque[tuple[EventReported | StepRecorded, float]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._ended = False
        self._unwritten: deque[tuple[EventReported | StepRecorded, float]] = deque(
            maxlen=PENDING_MAX
        )
        self._task: asyncio.Task[None] | None = None

    def start(self, broken: Callable[[str], None]) -> None:
        """Begin to write; `broken` is called once, when a record cannot be written."""
        self._task = asyncio.create_task(self._run(broken), name="recorder")

    def record(self, message: EventReported | StepRecorded) -> None:
        """Take one record; it is stamped with the present time and written soon."""
        if self._ended:
            self._unwritten.append((message, time.time()))
            return
        self._pending.append((message, time.time()))
        self._idle.clear()
        self._work.set()
        if len(self._pending) >= PENDING_MAX:
            self._room.clear()

    async def room(self) -> None:
        """Wait until the disk has caught up; for whoever takes records from others."""
        await self._room.wait()

    async def settled(self) -> None:
        """Wait until everything taken so far has been written."""
        await self._idle.wait()

    async def complete_step(self) -> None:
        """Write everything taken so far, the last step whole, for those who follow the file.

        What cannot be written now is tried again by `close`, which tells of it.
        """
        await self.settled()
        if self._unwritten:
            return
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Exception):
            await loop.run_in_executor(self._thread, self._files.complete_step)

    async def close(self) -> None:
        """Write what is pending, also what the disk once did not take, and close the files.

        Raises:
            OSError: it still does not take it.
            Exception: what ended the writing before this.
        """
        self._closing = True
        self._work.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            self._thread.shutdown()
            try:
                self._write(self._unwritten)
            finally:
                self._files.close()

    async def _run(self, broken: Callable[[str], None]) -> None:
        try:
            await self._write_all(broken)
        finally:
            # Nobody waits for a writer that is gone; `close` writes what it left.
            self._ended = True
            self._unwritten += self._pending
            self._pending.clear()
            self._room.set()
            self._idle.set()

    async def _write_all(self, broken: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        healthy, faultless = True, True
        while True:
            if not self._pending:
                if self._closing:
                    return
                self._work.clear()
                self._idle.set()
                await self._work.wait()
                continue
            batch = self._pending.copy()
            self._pending.clear()
            self._room.set()
            if not healthy:
                self._unwritten += batch
                continue
            try:
                await loop.run_in_executor(self._thread, self._write, batch)
            except OSError as error:
                healthy = False
                self._unwritten += batch
                broken(f"the run folder cannot be written: {error}")
            except Exception as error:  # noqa: BLE001 - a fault of our own ends the run, by name
                # The first of them would fail for ever; those behind it are written.
                self._pending.extendleft(reversed([*batch][1:]))
                if faultless:
                    faultless = False
                    broken(f"the recorder failed: {type(error).__name__}: {error}")

    def _write(self, batch: deque[tuple[EventReported | StepRecorded, float]]) -> None:
        """Write all of them; what could not be written stays in `batch`, the culprit first."""
        if not batch:
            return
        while batch:
            message, wall_s = batch[0]
            if isinstance(message, EventReported):
                self._files.event(message, wall_s)
            elif (strange := self._files.step(message, wall_s)) is not None:
                self._files.event(strange, wall_s)
            batch.popleft()
        self._files.keep_open_step()


def _append(file: FileIO, line: dict[str, Any]) -> None:
    """Write one line, whole or not at all."""
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps(line, default=repr, option=options)
    except TypeError:
        # Integers beyond 64 bits and keys of a strange type: what was said is kept as text.
        plain = {
            key: value if isinstance(value, float) else str(value) for key, value in line.items()
        }
        text = orjson.dumps(plain, option=options)
    append_whole(file.fileno(), text)
