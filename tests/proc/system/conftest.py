"""A starting checkpoint for the whole folder, and runs that are gone at the end of their test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest
from proc.system.harness import RUN_S, Start, SystemRun, environment, milepost

WARM_UP_STEPS: Final = 30
UNBROKEN_STEPS: Final = 6


class Launch(Protocol):
    """Starts a run."""

    def __call__(self, start: Start, *, resume: bool = False) -> SystemRun: ...


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model after a warm-up of a few steps, made by the warm-up recipe as a person makes it.

    The processes of one suite share it: who comes first makes it, the others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = shared / "warm_up" / "run" / "checkpoints" / f"step_{WARM_UP_STEPS:06d}" / "hf"
    with (shared / "warm_up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "warm_up.made").exists():
            _warm_up(shared / "warm_up")
            (shared / "warm_up.made").touch()
    return made


def _warm_up(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of somebody who died over it
    folder.mkdir()
    steps = f"run.steps={WARM_UP_STEPS}"
    words = ["run", "lookup_warmup", "--plain", "--out", "run", "--set", steps]
    done = subprocess.run(
        [milepost(), *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> SystemRun:
    """A synchronous run that nobody disturbs; the others are compared with it."""
    folder = tmp_path_factory.mktemp("unbroken")
    run = SystemRun(Start(folder, checkpoint, base="lookup_sync", steps=UNBROKEN_STEPS))
    try:
        assert run.end() == 0, run.text
    finally:
        run.close()
    return run


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts runs; when the test is over, nothing of any of them is left."""
    with contextlib.ExitStack() as stack:

        def begin(start: Start, *, resume: bool = False) -> SystemRun:
            run = SystemRun(start, resume=resume)
            stack.callback(run.close)
            return run

        yield begin
