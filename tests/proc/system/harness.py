"""Starts whole runs as a person does, `milepost run ...`, hurts them, and reads what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from proc.runs import TESTS, Running

from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.resuming import recover
from milepost.configs.metrics import METRICS

RUN_S: Final = 200.0
"""Deadline of one whole run on a machine that does much else."""
CHECKPOINTS_ALL: Final = 1_000_000
"""Replaying a journal with this many checkpoints to go back to forgets no name."""
GROUPS: Final = 2
MEMBERS: Final = 4

SMALL: Final = f"""
base = "{{base}}"
[run]
steps = {{steps}}
checkpoint_every_steps = 1
checkpoints_keep = 100
[model]
path = "{{checkpoint}}"
made_by = ""
[data]
shuffle = false
[algorithm]
prompts_per_step = {GROUPS}
samples_per_prompt = {MEMBERS}
[guard]
batches_without_spread_max = 0
[limits]
seconds_max = 30.0
[actors.rollout]
trajectories_in_flight_max = {4 * MEMBERS}
[actors.buffer]
groups_max = {2 * GROUPS}
[actors.evaluator]
prompts_max = 8
[system.timeouts]
drain_s = 10.0
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Everything that one `milepost run` is started with.

    Attributes:
        folder: of the test; the run's own is `run` in it.
        checkpoint: that the model starts from.
        base: recipe that the small topology is made of.
        agent: `module:Class` instead of the recipe's, and its options.
        words: further words of the command line.
    """

    folder: Path
    checkpoint: Path
    base: str = "lookup"
    steps: int = 4
    agent: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    more: str = ""
    words: tuple[str, ...] = ()

    def topology(self) -> str:
        """The TOML text."""
        text = SMALL.format(base=self.base, steps=self.steps, checkpoint=self.checkpoint)
        if self.agent:
            options = ", ".join(f"{key} = {json.dumps(each)}" for key, each in self.options.items())
            text += f'[actors.agent]\nagent = "{self.agent}"\noptions = {{ {options} }}\n'
        return text + self.more


class SystemRun(Running):
    """One `milepost run` and its folder."""

    def __init__(self, start: Start, *, resume: bool = False) -> None:
        self.folder = start.folder / "run"
        file = start.folder / "small.toml"
        file.write_text(start.topology())
        where = "--resume" if resume else "--out"
        words = ["run", str(file), "--plain", where, str(self.folder), *start.words]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [milepost(), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=start.folder,
            env=environment(start.folder),
            start_new_session=True,
        )
        self.output = b""

    @classmethod
    def of(cls, start: Start) -> SystemRun:
        """The folder of a run that ended, without a process."""
        run = cls.__new__(cls)
        run.folder = start.folder / "run"
        return run

    def until(self, text: str, deadline_s: float = RUN_S) -> str:
        """As of `Running`, with the patience that a whole run needs."""
        return super().until(text, deadline_s)

    def end(self, deadline_s: float = RUN_S) -> int:
        """As of `Running`."""
        return super().end(deadline_s)

    def kill(self, actor: str) -> psutil.Process:
        """SIGKILL one actor."""
        victim = self.children()[actor]
        victim.send_signal(signal.SIGKILL)
        return victim

    # ---- what it wrote -------------------------------------------------------------------

    def steps(self) -> list[dict[str, Any]]:
        """The objects of metrics.jsonl that stand for a trained batch."""
        return [line for line in self.lines("metrics.jsonl") if "train/version" in line]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [event for event in self.lines("events.jsonl") if event["kind"] == kind]

    def ledger(self) -> Ledger:
        """The rollout actor's ledger as its journal tells it; no name is forgotten."""
        return recover(self.folder / "journal" / "rollout", CHECKPOINTS_ALL)

    @property
    def num_steps(self) -> int:
        """Steps that were planned."""
        return int(self.summary["steps"])

    def checkpoints(self) -> list[int]:
        """Steps of the whole checkpoints."""
        metas = (self.folder / "checkpoints").glob("step_*/meta.json")
        return sorted(int(path.parent.name.removeprefix("step_")) for path in metas)

    def newest(self) -> int:
        """Step of the newest whole checkpoint; 0 when there is none."""
        return max(self.checkpoints(), default=0)

    def meta(self, step: int) -> dict[str, Any]:
        """What a checkpoint says of itself."""
        return self.json(f"checkpoints/step_{step:06d}/meta.json")


def milepost() -> str:
    """The command, as installed beside this interpreter."""
    return str(Path(sys.executable).with_name("milepost"))


def environment(folder: Path) -> dict[str, str]:
    """Of a person who keeps code in `folder` and ours in the tests."""
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [str(TESTS), str(folder), *([inherited] if inherited else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "MILEPOST_CACHE": str(folder / "cache"),
    }


def positions(groups: Sequence[str]) -> list[int]:
    """Positions of the prompts that these groups are about, ascending."""
    return sorted(int(name.removeprefix("g").partition("r")[0]) for name in groups)


def check_balance(run: SystemRun, steps: int) -> Ledger:
    """Nothing is trained twice, nothing is lost: every prompt up to the cursor is accounted for.

    Args:
        run: ended.
        steps: that its newest checkpoint was taken after.
    """
    ledger = run.ledger()
    ledger.validate()
    trained = list(run.meta(steps)["trained_group_ids"]) if steps else []
    assert len(trained) == len(set(trained)) == steps * GROUPS, trained
    assert not set(trained) & (set(ledger.open)), "trained, and to be issued again"
    known = [*ledger.trained, *ledger.open, *ledger.stored]
    given_up = sum(ledger.dropped.values())
    assert len(known) + given_up == ledger.num_issued
    if not given_up:
        assert positions(known) == list(range(ledger.position)), "a prompt is nowhere"
    return ledger


def check_metrics(run: SystemRun, steps: int, *, minibatches: int = 2) -> None:
    """One object a step, and one before the first with what was measured there."""
    lines = run.steps()
    unknown = {name for line in lines for name in line if METRICS.find(name) is None}
    assert unknown == {"step", "time"}, "not in the table of metrics"
    assert [line["step"] for line in run.lines("metrics.jsonl")] == list(range(steps + 1))
    assert [line["train/step"] for line in lines] == list(range(steps))
    assert [line["train/version"] for line in lines] == list(range(1, steps + 1))
    updates = [minibatches * n for n in range(1, steps + 1)]
    assert [line["train/optimizer_step"] for line in lines] == updates


def published_versions(run: SystemRun) -> list[int]:
    """What engines were given, in order; told at a later step where the own one was written."""
    found = (entry for line in run.lines("metrics.jsonl") for entry in line.items())
    own = "perf/update_weights_version"
    return sorted({int(value) for name, value in found if name.partition("@")[0] == own})


def decoded(path: Path) -> Any:
    """A JSON file."""
    return msgspec.json.decode(path.read_bytes())


def lrs(run: SystemRun) -> list[float]:
    """Learning rate of each step."""
    return [line["train/lr-pg_0"] for line in run.steps()]


def check_order(run: SystemRun) -> None:
    """Of a synchronous run: every step trained the next prompts in their order."""
    trained = run.meta(run.num_steps)["trained_group_ids"]
    for step in range(run.num_steps):
        batch = trained[step * GROUPS : (step + 1) * GROUPS]
        assert positions(batch) == list(range(step * GROUPS, (step + 1) * GROUPS)), (step, trained)
