"""The evaluator's hand for checkpoints: keeps them in place, and runs the user's class on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.actors.agent.processes import END_S, started
from milepost.actors.evaluator.external_worker import CRASHED, Measured, Task
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint, RemoveCheckpoint

WORKER: Final = "milepost.actors.evaluator.external_worker"
HUGGING_FACE: Final = "hf"


@dataclass(frozen=True, slots=True)
class Examiner:
    """One user's class and where its checkpoints are kept.

    Attributes:
        path: `module:Class`.
        options: its keyword arguments.
        folder: RUN/evaluation.
    """

    path: str
    options: dict[str, Any]
    folder: Path

    def sweep(self, due: Collection[int]) -> None:
        """Remove what lives before this one kept, but for the versions that are still due."""
        ours = {self._place(version) for version in due}
        if self.folder.is_dir():
            for found in self.folder.iterdir():
                if found not in ours:
                    shutil.rmtree(found)

    def _place(self, version: int) -> Path:
        return self.folder / f"version_{version:06d}"

    async def keep(self, work: KeepCheckpoint) -> str:
        """Links to the checkpoint's files: they stay when the trainer removes its own.

        A folder is there whole or not at all, so one that a former life has kept will do.

        Returns:
            The folder.

        Raises:
            OSError: the files are gone, or the disk knows no links.
        """
        return str(await asyncio.to_thread(self._keep, work))

    def _keep(self, work: KeepCheckpoint) -> Path:
        kept = self._place(work.version)
        if not kept.is_dir():
            part = kept.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(Path(work.folder) / HUGGING_FACE, part, copy_function=os.link)
            part.rename(kept)
        return kept

    async def remove(self, work: RemoveCheckpoint) -> None:
        """The links go."""
        kept = self._place(work.version)
        await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)

    async def measure(self, work: MeasureCheckpoint) -> Measured:
        """Run the class in a process of its own, which is gone afterwards, with all it started."""
        task = Task(
            path=self.path, options=self.options, checkpoint=work.checkpoint, version=work.version
        )
        words = (sys.executable, "-P", "-m", WORKER)
        creation = asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        process = await started(creation)
        asking = asyncio.create_task(process.communicate(msgspec.json.encode(task)))
        try:
            done, _ = await asyncio.wait({asking}, timeout=work.deadline_s)
        finally:
            # It leads a group of its own, which may outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait({asking}, timeout=END_S)
        output, code = asking.result()[0] if asking.done() else b"", await process.wait()
        if not done:
            return Measured(skipped="deadline", text=f"no score within {work.deadline_s} s")
        return self._read(output, process, code)

    def _read(self, output: bytes, process: Process, code: int) -> Measured:
        try:
            return msgspec.json.decode(output, type=Measured)
        except msgspec.DecodeError:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            text = f"its process {process.pid} ended with {how} and said nothing"
            return Measured(skipped=CRASHED, text=text)
