"""Variants with one well-known mistake each fail here; a simulator that passes them sees nothing.

Each is looked for over the seeds that our own actors pass in `test_swarm`, under faults that give
the mistake a chance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

import pytest
from sim import naive, naive_exams
from sim.faults import Faults
from sim.runs import run_seed
from sim.world import Variant

SEEDS = 40
CALM = Faults()
JUMPS = Faults(delay=0.3, delay_s=0.5)
DEATHS = Faults(death=0.03, deaths=4, restart_s=0.5)
BUFFER_DIES = Faults(death=0.1, deaths=20, mortal=("buffer",), restart_s=0.1, step_s=0.05)
AGENTS_DIE = Faults(death=0.03, deaths=2, mortal=("agent",))
RESUMES = Faults(resume=0.01, resumes=2)
BLOCKS = Faults(block=0.02, block_s=70.0, blocks=3)
RESUMES_SLOWLY = Faults(resume=0.01, resumes=2, step_s=20.0)
IMPATIENT = Faults(impatience=1.0, delay=0.3, delay_s=0.5)
FULL_LINKS = Faults(slow=0.05, slow_s=3.0, slows=12, full_max=2, refused_s=0.0)
SLOW_TRAINER = Faults(step_s=20.0)
QUICK_TRAINER = Faults(step_s=0.05)


@dataclass(frozen=True)
class Canary:
    """A mistake, where it shows, and how the checkers word it."""

    variant: Variant
    faults: Faults
    said: str
    first: int = 0
    """Seed to begin with: where a rare mistake is known to show soon."""


CANARIES = {
    "a buffer that tells before it writes": Canary(
        Variant(buffer=naive.TellsBeforeItWrites.of), BUFFER_DIES, ".", first=178
    ),
    "a buffer that forgets what it handed out": Canary(
        Variant(buffer=naive.ForgetsWhatWasHandedOut.of),
        BUFFER_DIES,
        "trained twice|next one is",
        first=110,
    ),
    "a member counted twice (33 of 32)": Canary(
        Variant(buffer=naive.CountsMembersNotNames.of), DEATHS, r"g\d+", first=51
    ),
    "age judged when stored, not when handed out": Canary(
        Variant(buffer=naive.JudgesAgeWhenStored.of), SLOW_TRAINER, "the limit is"
    ),
    "room counted from the recovered version": Canary(
        Variant(buffer=naive.capacity_from_recovered_version),
        RESUMES_SLOWLY,
        "left behind|capacity|does not end",
    ),
    "a rollout actor that waits for the dead": Canary(
        Variant(rollout=naive.WaitsForTheDead.of), AGENTS_DIE, "does not end"
    ),
    "full links whose refusals are told at once, to somebody who tries again at once": Canary(
        Variant(rollout=naive.TriesAgainAtOnce.of), FULL_LINKS, "given up", first=60
    ),
    "trained groups forgotten before anybody heard": Canary(
        Variant(buffer=naive.ForgetsTooSoon.of), BLOCKS, "does not end", first=80
    ),
    "prompts in flight skipped at a resume": Canary(
        Variant(rollout=naive.skips_what_was_in_flight), RESUMES, "skipped"
    ),
    "the data read from the start at a resume": Canary(
        Variant(rollout=naive.reads_the_data_from_the_start), RESUMES, "Issued|twice|skipped"
    ),
    "published at the first engine's answer": Canary(
        Variant(
            publisher=partial(naive.publisher_with, epochs_kind=naive.PublishesAtTheFirstAnswer)
        ),
        BLOCKS,
        "is published and engine",
        first=50,
    ),
    "activated while the version is held": Canary(
        Variant(publisher=partial(naive.publisher_with, holds_kind=naive.NeverHolds)),
        CALM,
        "is held",
        first=60,
    ),
    "evaluation engines that follow while a version is measured": Canary(
        Variant(fleet=naive.FollowsWhileItIsMeasured), CALM, "is measured|no score|num_mixed"
    ),
    "an exam told of another checkpoint than it looked at": Canary(
        Variant(evaluator=partial(naive_exams.examining, naive_exams.NamesTheNewest)),
        CALM,
        "is told of",
        first=135,
    ),
    "a trainer that never waits for a checkpoint to be taken": Canary(
        Variant(evaluator=partial(naive_exams.examining, naive_exams.NeverMakesWait)),
        QUICK_TRAINER,
        "nobody knows of them|taken away",
        first=539,
    ),
    "a turn trained that came after the reward": Canary(
        Variant(cuts_unseen=False), IMPATIENT, "the reward saw"
    ),
    "a session that asks an engine of another run": Canary(
        Variant(session=naive.AsksAStranger), CALM, "is no engine of the run"
    ),
    "a session that renders otherwise than the trainer": Canary(
        Variant(session=naive.RendersOtherwise), CALM, "renders it as 2 tokens, the trainer as 1"
    ),
    "a session that leaves the adapter out": Canary(
        Variant(session=naive.LeavesTheAdapterOut), CALM, "a turn through .* differs from the tr"
    ),
    "an engine that samples over old keys and values": Canary(
        Variant(stale="engine-0"), CALM, "a turn through .* differs from the trainer's"
    ),
    "an engine that takes the news of its threads to come in one order": Canary(
        Variant(engine=naive.HearsOfItsSwitchFirst), JUMPS, "engine-. answered with .*digest=''"
    ),
    "an engine that confirms what it does not serve": Canary(
        Variant(liar="engine-0"), CALM, "canary|log-probs"
    ),
}


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_the_simulator_finds(canary: Canary) -> None:
    """Prime suspects of public post-mortems: each is seen within a few seeds."""
    errors = (found(seed, canary) for seed in range(canary.first, canary.first + SEEDS))
    first = next(filter(None, errors), None)
    assert first is not None, f"nobody noticed in {SEEDS} seeds"
    assert re.search(canary.said, first, re.DOTALL), first


@pytest.mark.parametrize("seed", [61, 151])
def test_the_second_that_a_full_link_takes_keeps_even_the_impatient_alive(seed: int) -> None:
    """The remedy is in the bus, so that no actor has to think of it."""
    canary = Canary(Variant(rollout=naive.TriesAgainAtOnce.of), FULL_LINKS, "given up")
    assert "given up" in found(seed, canary)
    assert not found(seed, replace(canary, faults=replace(FULL_LINKS, refused_s=1.0)))


def found(seed: int, canary: Canary) -> str:
    """What the checkers say of the variant under this seed; "" when they say nothing."""
    try:
        run_seed(seed, faults=canary.faults, variant=canary.variant)
    except AssertionError as error:
        return str(error)
    return ""
