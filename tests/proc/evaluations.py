"""Evaluations of checkpoints that look at real files, hang, and leave processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from milepost.actors.evaluator.external import ExternalEvaluation


class Counts(ExternalEvaluation):
    """Number and size of the files, after it has seen that they stay."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        del version
        print("what is printed goes to the log")  # noqa: T201
        files = [path for path in checkpoint.iterdir() if path.is_file()]
        return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


class Hangs(ExternalEvaluation):
    """Starts a server and waits for it for ever."""

    def __init__(self, note: str) -> None:
        self.note = Path(note)

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        server = subprocess.Popen(["sleep", "3600"])
        self.note.write_text(str(server.pid))
        server.wait()
        raise AssertionError(checkpoint, version)


class Dies(ExternalEvaluation):
    """As by the kernel's hand."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError(checkpoint, version)


class Stalls(Counts):
    """The first exam of version 1 says that it has begun, and never ends; every other is quick."""

    def __init__(self, begun: str) -> None:
        self.begun = Path(begun)
        """A named pipe."""

    def evaluate(self, checkpoint: Path, version: int) -> Mapping[str, float]:
        if version == 1 and self.begun.exists():
            with self.begun.open("w") as pipe:
                self.begun.unlink()
                pipe.write("begun")
            while True:
                signal.pause()
        return super().evaluate(checkpoint, version)
