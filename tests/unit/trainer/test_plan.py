"""What the cores read off a topology, and messages nobody should send."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.trainer.play import MODEL, PLAN, Play

from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.trained import TrainedGroups
from milepost.configs.load import load_topology
from milepost.messages.buffer import StepTrained


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), {"sync": False, "prefetch": True, "refuses_stale": False}),
        (("run.mode=sync",), {"sync": True, "prefetch": False}),
        (
            ("actors.buffer.max_weight_staleness=2", "actors.buffer.staleness_policy=drop"),
            {"prefetch": False, "refuses_stale": True, "staleness_max": 2},
        ),
        (
            ("actors.buffer.max_weight_staleness=2", "actors.buffer.staleness_policy=pace"),
            {"prefetch": False, "refuses_stale": False},
        ),
    ],
)
def test_plans_read_off_the_topology(
    overrides: tuple[str, ...], expected: dict[str, object]
) -> None:
    plan = TrainerPlan.of(load_topology("lookup", overrides))
    assert {name: getattr(plan, name) for name in expected} == expected
    assert plan.ranks == ("trainer-0",)


def test_a_kl_term_without_a_reference_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference model can be configured"):
        TrainerPlan.of(load_topology("lookup", ("algorithm.kl_coef=0.1",)))


def test_the_warm_up_has_neither_publisher_nor_evaluator() -> None:
    plan = TrainerPlan.of(load_topology("lookup_warmup"))
    assert (plan.sft, plan.publisher, plan.final_listeners) == (True, "", ())
    assert plan.prefetch


def test_a_trainer_that_is_told_nonsense_says_so() -> None:
    core = Trainer.of(
        replace(PLAN),
        model=MODEL,
        version=0,
        trained=TrainedGroups(),
    )
    game = Play(core)
    with pytest.raises(TypeError, match="trainer-0 was told StepTrained by buffer"):
        game.receive(StepTrained(step=0, version=1, group_ids=()), "buffer")
