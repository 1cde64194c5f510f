"""Recorded batches through the real model once more: does each step come to the same loss?

The trainer's core is replayed like any other; at each `TrainBatch` that it orders, the model is
trained, from the last checkpoint at or before the last batch asked for, or from the initial
weights.
On one machine, with one thread and on the CPU, the figures are the same bit for bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from milepost.actors.effects import Effect, Event, WorkDone
from milepost.actors.recorder.lines import Line
from milepost.actors.recorder.replay.playing import Played, play
from milepost.actors.recorder.replay.tape import ReplayRefused, Tape, Until
from milepost.actors.trainer.fsdp.checkpoint import folder_name
from milepost.actors.trainer.fsdp.workshop import CHECKPOINTS, Bench, Workshop
from milepost.actors.trainer.run import make_core
from milepost.actors.trainer.works import StepOutcome, TrainBatch
from milepost.messages.supervisor import StepRecorded

SHOWN: Final = ("train/loss", "train/grad_norm")
TIMES: Final = "perf/"


@dataclass(frozen=True, slots=True)
class Step:
    """One step, then and now.

    Attributes:
        step: number of the batch.
        then: metrics as recorded.
        now: metrics as computed again.
    """

    step: int
    then: dict[str, float]
    now: dict[str, float]

    def differences(self, bound: float) -> list[str]:
        """Metrics, but for times, that differ by more than `bound`, relative to the larger."""
        return [
            name
            for name in sorted({*self.then, *self.now})
            if not name.startswith(TIMES)
            and not _close(self.then.get(name), self.now.get(name), bound)
        ]

    def words(self) -> str:
        """`step 2: train/loss 0.0312 (recorded 0.0312), ...`."""
        parts = (
            f"{name} {self.now[name]!r} (recorded {self.then.get(name)!r})"
            for name in SHOWN
            if name in self.now
        )
        return f"step {self.step}: {', '.join(parts)}"


@dataclass(slots=True)
class _Trainee:
    """Trains what the replayed core orders, and notes what it came to."""

    workshop: Workshop
    first: int
    pending: StepOutcome | None = None
    steps: list[Step] = field(default_factory=list)
    number: int = -1

    def watch(self, _line: Line, event: Event | None, effects: Sequence[Effect]) -> None:
        match event:
            case WorkDone(result=StepOutcome(metrics=then)) if self.pending is not None:
                self.steps.append(Step(self.number, then, self.pending.metrics))
                self.pending = None
        for effect in effects:
            if isinstance(effect, TrainBatch) and effect.batch.step >= self.first:
                self.number = effect.batch.step
                outcome = self.workshop.perform(effect)
                assert isinstance(outcome, StepOutcome), outcome
                self.pending = outcome


@dataclass(frozen=True, slots=True)
class Trained:
    """How it went.

    Attributes:
        played: what the core decided.
        steps: what was trained.
        begun: where the weights came from, in words.
    """

    played: Played
    steps: list[Step]
    begun: str


def replay_training(tape: Tape, until: Until) -> Trained:
    """Replay rank 0 of a trainer of one rank, with its model.

    Raises:
        ReplayRefused: there are more ranks, no step to compare, or no weights to begin with.
    """
    spec = tape.spec
    trainer = spec.topology.actors.trainer
    assert trainer is not None, "the topology has no trainer"
    if trainer.ranks > 1:
        raise ReplayRefused(f"{spec.actor} is one of {trainer.ranks} ranks, one alone cannot train")
    run_folder = Path(spec.run_folder)
    begin = max(beginning(tape, until, saved_steps(run_folder)), spec.resume_step or 0)
    with tempfile.TemporaryDirectory(prefix="milepost-replay-") as folder:
        # Whatever opening a model leaves behind stays out of the run's folder.
        (Path(folder) / CHECKPOINTS).symlink_to((run_folder / CHECKPOINTS).resolve())
        try:
            workshop = Workshop(
                Bench(
                    topology=spec.topology,
                    rank=0,
                    run_id=spec.run_id,
                    run_folder=Path(folder),
                    resume_step=begin or None,
                )
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise ReplayRefused(_no_weights(run_folder, begin, error)) from error
        try:
            first = spec.resume_step or 0
            if first and first != begin:
                raise ReplayRefused(
                    f"the recording goes on from step {first}, so its first state is that of the "
                    f"checkpoint of step {first}; ask for --until step={first} to begin there"
                )
            trainee = _Trainee(workshop, begin)
            core = make_core(spec, workshop, fresh=not first)
            played = play(tape, core, trainee.watch)
            begun = f"the checkpoint of step {begin}" if begin else "the initial weights"
            return Trained(played, trainee.steps, begun)
        finally:
            workshop.close()


def beginning(tape: Tape, until: Until, saved: Iterable[int]) -> int:
    """The step of the checkpoint to begin with; 0: the initial weights.

    After the last step its figures and its checkpoint are noted under a number that no batch has,
    so it is the last batch on the tape that counts.

    Args:
        tape: of a trainer.
        until: where it ends; the weights of a step alone spare the steps before.
        saved: steps of checkpoints.

    Raises:
        ReplayRefused: the figures of no step are on the tape, so all of them would be the same.
    """
    trained = trained_steps(tape.lines)
    if not trained:
        every = trained_steps(tape.recorded)
        there = f"{every[0]} to {every[-1]}" if every else "none"
        raise ReplayRefused(
            f"{tape.spec.actor} ended no step up to there, nothing can be compared: "
            f"steps with figures are {there}"
        )
    wanted = min(until.value, trained[-1]) if until.mark == "step" else 0
    return max((step for step in saved if step <= wanted), default=0)


def trained_steps(lines: Iterable[Line]) -> list[int]:
    """Numbers of the batches whose figures are there."""
    return [
        told.facts["step"]
        for line in lines
        if line.type == StepOutcome.__name__
        for told in line.decisions
        if told.type == StepRecorded.__name__
    ]


def saved_steps(run_folder: Path) -> Iterator[int]:
    """Steps of whole checkpoints."""
    for path in (run_folder / CHECKPOINTS).glob("step_*/meta.json"):
        step = int(path.parent.name.removeprefix("step_"))
        assert folder_name(step) == path.parent.name, path
        yield step


def _no_weights(run_folder: Path, begin: int, error: Exception) -> str:
    known = sorted(saved_steps(run_folder))
    where = f"the checkpoint of step {begin}" if begin else "the initial weights"
    steps = f"steps from {', '.join(map(str, known))} on" if known else "no step"
    return f"{where} cannot be loaded ({error}); with the checkpoints there are, {steps} can be"


def _close(then: float | None, now: float | None, bound: float) -> bool:
    if then is None or now is None:
        return False
    both_nan = then != then and now != now  # noqa: PLR0124 - NaN is not equal to itself
    return then == now or both_nan or abs(then - now) <= bound * max(abs(then), abs(now))
