"""Checks of the algorithm's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import fields

from milepost.configs.actors import TrainerConfig
from milepost.configs.base import Config
from milepost.configs.problem import Problem
from milepost.configs.run import AlgorithmConfig
from milepost.supervisor.checks.check import Finding, Note, Subject

DISTANCE_MAX: Final = 10_000
"""How far from a wish another number of minibatches is looked for."""


def sampling_is_recomputable(subject: Subject) -> Iterator[Finding]:
    """A trainer that recomputes log-probs of a distribution that was not sampled from."""
    if subject.topology.algorithm.estimator == "sft":
        return
    sampling = subject.topology.sampling
    for name, value, off in (
        ("top_p", sampling.top_p, 1.0),
        ("top_k", sampling.top_k, 0),
        ("min_p", sampling.min_p, 0.0),
    ):
        if value != off:
            what = f"{name} = {value} cuts the distribution that the trainer recomputes whole"
            yield Problem(what, f"$.sampling.{name}", f"set it to {off} for training")


def batch_divides(subject: Subject) -> Iterator[Finding]:
    """A group with nothing to compare with, an empty minibatch, a batch that never fills."""
    topology = subject.topology
    algorithm, trainer, buffer = topology.algorithm, topology.actors.trainer, topology.actors.buffer
    prompts, minibatches = algorithm.prompts_per_step, algorithm.minibatches_per_step
    samples = algorithm.samples_per_prompt if algorithm.estimator != "sft" else 1
    if algorithm.estimator == "grpo" and samples < 2:
        what = "samples_per_prompt = 1: a group of one has no other reward to be compared with"
        yield Problem(what, "$.algorithm.samples_per_prompt", "set 2 or more")
    if prompts % minibatches:
        what = f"prompts_per_step = {prompts} does not divide into {minibatches} minibatches"
        remedy = f"try {_divisor_near(prompts, minibatches)}"
        yield Problem(what, "$.algorithm.minibatches_per_step", remedy)
    elif trainer is not None and trainer.ranks > prompts * samples // minibatches:
        what = (
            f"ranks = {trainer.ranks}, but a minibatch has only "
            f"{prompts * samples // minibatches} trajectories"
        )
        remedy = "use fewer ranks, fewer minibatches, or larger batches"
        yield Problem(what, "$.actors.trainer.ranks", remedy)
    if buffer is not None and buffer.groups_max < prompts:
        what = f"groups_max = {buffer.groups_max}, but one batch needs {prompts} groups"
        yield Problem(what, "$.actors.buffer.groups_max", f"set {prompts} or more")


def loss_is_defined(subject: Subject) -> Iterator[Finding]:
    """A term of the loss that is ignored in silence, or clips the wrong way."""
    algorithm = subject.topology.algorithm
    if algorithm.estimator == "sft":
        return
    if algorithm.kl_coef:
        what = f"kl_coef = {algorithm.kl_coef} needs a reference model, and none can be configured"
        yield Problem(what, "$.algorithm.kl_coef", "set it to 0")
    if algorithm.dual_clip and algorithm.dual_clip <= 1:
        what = f"dual_clip = {algorithm.dual_clip} would clip inside the trust region"
        yield Problem(what, "$.algorithm.dual_clip", "set more than 1 (3 is usual), or 0 for off")
    yield from _correction(algorithm)
    if not algorithm.normalize_std:
        yield from _unread(algorithm, ("std_epsilon",), "$.algorithm", "normalize_std = false")


def _unread(table: Config, names: tuple[str, ...], where: str, given: str) -> Iterator[Finding]:
    """Settings that somebody has changed, and that nothing reads."""
    defaults = {field.name: field.default for field in fields(table)}
    for name in names:
        value = getattr(table, name)
        if value != defaults[name]:
            what = f"{name} = {value} has no effect with {given}"
            yield Problem(what, f"{where}.{name}", "leave it out")


def _correction(algorithm: AlgorithmConfig) -> Iterator[Finding]:
    low, high = algorithm.correction_low, algorithm.correction_high
    if algorithm.correction == "none":
        names = ("correction_low", "correction_high")
        yield from _unread(algorithm, names, "$.algorithm", 'correction = "none"')
        return
    if not low < 1 < high:
        what = f"correction_low = {low} and correction_high = {high} do not enclose 1"
        remedy = "1 is the ratio of two equal policies; e.g. 0 and 2 for tis, 0.5 and 5 for pop"
        yield Problem(what, "$.algorithm.correction_high", remedy)
    if algorithm.correction == "tis" and low:
        what = f"correction_low = {low}: truncated importance sampling has no lower bound"
        yield Problem(what, "$.algorithm.correction_low", "set it to 0")


def optimizer_can_step(subject: Subject) -> Iterator[Finding]:
    """A learning rate that is never reached, or a division by zero inside Adam."""
    trainer = subject.topology.actors.trainer
    if trainer is None:
        return
    for name, value in (("beta1", trainer.beta1), ("beta2", trainer.beta2)):
        if value >= 1:
            what = f"{name} = {value}: a moving average that never moves"
            yield Problem(what, f"$.actors.trainer.{name}", "set less than 1")
    algorithm, run = subject.topology.algorithm, subject.topology.run
    if algorithm.estimator != "sft" and trainer.publish_every_steps >= run.steps:
        every = trainer.publish_every_steps
        text = f"{every} of {run.steps} steps, so all data is sampled from the starting weights"
        yield Note(text, "$.actors.trainer.publish_every_steps")
    yield from _schedule(trainer, run.steps * algorithm.minibatches_per_step)


def _schedule(trainer: TrainerConfig, steps: int) -> Iterator[Finding]:
    schedule, where = trainer.schedule, "$.actors.trainer.schedule"
    if schedule.warmup_steps >= steps:
        # Somebody tries a few steps of a long recipe: that is allowed.
        text = (
            f"{schedule.warmup_steps} of {steps} optimizer steps, so lr {trainer.lr} is not reached"
        )
        yield Note(text, f"{where}.warmup_steps")
    if schedule.kind == "constant":
        yield from _unread(schedule, ("lr_min",), where, 'kind = "constant"')
    elif schedule.lr_min > trainer.lr:
        what = f"lr_min = {schedule.lr_min} is above lr = {trainer.lr}"
        yield Problem(what, f"{where}.lr_min", "set it below lr")
    decays = schedule.kind == "warmup_stable_decay"
    if decays and not schedule.decay_fraction:
        what = "warmup_stable_decay with decay_fraction = 0 never decays"
        yield Problem(what, f"{where}.decay_fraction", 'set e.g. 0.3, or kind = "constant"')
    if not decays and schedule.decay_fraction:
        what = f'decay_fraction = {schedule.decay_fraction} is not read by kind "{schedule.kind}"'
        yield Problem(what, f"{where}.decay_fraction", 'set kind = "warmup_stable_decay"')


def _divisor_near(number: int, wish: int) -> int:
    """The divisor nearest to a wish; 1, when none is near."""
    for distance in range(min(wish, DISTANCE_MAX)):
        for divisor in (wish - distance, wish + distance):
            if number % divisor == 0:
                return divisor
    return 1
