"""The checks that look at the topology alone: each rule holds, and each breach is told."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.actors.buffer.filters import BUILT_IN
from milepost.actors.session.families import FAMILIES
from milepost.actors.session.families.default import Default
from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.leaves import PICKERS, POST_PROCESSORS
from milepost.actors.session.matchers import MATCHERS
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.configs.read import merge, parse_override
from milepost.configs.topology import Topology
from milepost.supervisor.checks import (
    CHECKS,
    Checked,
    Machine,
    Note,
    Stage,
    Subject,
    parts,
    run_checks,
)

MACHINE = Machine(
    disk_free_bytes=1 << 40,
    writable=True,
    shared_memory_free_bytes=1 << 40,
    memory_available_bytes=1 << 40,
    open_files_max=1 << 20,
    temporary_folder="/tmp",
    requirements=(),
    asserts=True,
    curve=True,
)
GRPO: dict[str, Any] = {
    "run": {"name": "tiny", "steps": 100},
    "model": {"path": "/models/tiny", "context_tokens_max": 256},
    "data": {"prompts": "task:prompts"},
    "algorithm": {"prompts_per_step": 8, "samples_per_prompt": 8, "minibatches_per_step": 2},
    "limits": {"tokens_max": 256, "reply_tokens_max": 24},
    "actors": {
        "rollout": {},
        "agent": {"agent": "task:Agent"},
        "session": {},
        "engine": {},
        "buffer": {"max_weight_staleness": 4},
        "trainer": {"lr": 1e-3},
        "publisher": {},
        "evaluator": {},
    },
}
SFT: dict[str, Any] = {
    "run": {"name": "warm", "steps": 100},
    "model": {"create": "task:create"},
    "data": {"prompts": "task:conversations"},
    "algorithm": {"estimator": "sft"},
    "actors": {"rollout": {}, "session": {}, "buffer": {}, "trainer": {"lr": 1e-3}},
}
READING = [check for check in CHECKS if check.stage is Stage.READING]


def topology(document: dict[str, Any], *overrides: str) -> Topology:
    for override in overrides:
        document = merge(document, parse_override(override))
    return decode(document)


def problems(document: dict[str, Any], *overrides: str) -> list[Problem]:
    subject = Subject(topology(document, *overrides), MACHINE)
    return [problem for checked in run_checks(READING, subject) for problem in checked.problems]


def notes(document: dict[str, Any], *overrides: str) -> list[Note]:
    subject = Subject(topology(document, *overrides), MACHINE)
    return [note for checked in run_checks(READING, subject) for note in checked.notes]


@pytest.mark.parametrize("document", [GRPO, SFT], ids=["grpo", "sft"])
def test_a_sound_topology_has_no_problem(document: dict[str, Any]) -> None:
    assert problems(document) == []


@pytest.mark.parametrize(
    ("override", "where", "told"),
    [
        # which actors
        ("actors.publisher=false", "$.actors", "needs the actor `publisher`"),
        ("actors.agent=false", "$.actors", "needs the actor `agent`"),
        ("model=false", "$.model", "needs the table [model]"),
        ("data=false", "$.data", "needs the table [data]"),
        ("custom.engine.core=m:f", "$.custom.engine", "name of a built-in actor"),
        ("custom.supervisor.core=m:f", "$.custom.supervisor", "name of a built-in actor"),
        ("custom.a-b.core=m:f", "$.custom.a-b", "cannot be a process name"),
        # the model
        ('model.path=""', "$.model", "no starting checkpoint"),
        ("model.made_by=lookup_warmup", "$.model", "both path and made_by are set"),
        ("model.create_options={d = 3}", "$.model.create_options", "without create"),
        # sampling and loss
        ("sampling.top_p=0.9", "$.sampling.top_p", "cuts the distribution"),
        ("sampling.top_k=50", "$.sampling.top_k", "cuts the distribution"),
        ("sampling.min_p=0.1", "$.sampling.min_p", "cuts the distribution"),
        ("algorithm.kl_coef=0.1", "$.algorithm.kl_coef", "reference model"),
        ("algorithm.dual_clip=0.5", "$.algorithm.dual_clip", "inside the trust region"),
        ("algorithm.correction_high=0.9", "$.algorithm.correction_high", "do not enclose 1"),
        ("algorithm.correction_low=0.5", "$.algorithm.correction_low", "no lower bound"),
        # batches
        ("algorithm.samples_per_prompt=1", "$.algorithm.samples_per_prompt", "group of one"),
        ("algorithm.minibatches_per_step=3", "$.algorithm.minibatches_per_step", "not divide"),
        ("actors.trainer.ranks=33", "$.actors.trainer.ranks", "has only 32 trajectories"),
        ("actors.buffer.groups_max=7", "$.actors.buffer.groups_max", "one batch needs 8 groups"),
        # optimizer
        ("actors.trainer.beta2=1.0", "$.actors.trainer.beta2", "never moves"),
        (
            "actors.trainer.schedule.kind=warmup_stable_decay",
            "$.actors.trainer.schedule.decay_fraction",
            "never decays",
        ),
        (
            "actors.trainer.schedule.decay_fraction=0.3",
            "$.actors.trainer.schedule.decay_fraction",
            "is not read",
        ),
        # staleness
        ("actors.buffer.late=drop", "$.actors.buffer.late", "read only with"),
        ("algorithm.correction=none", "$.actors.buffer.staleness_policy", "to be corrected"),
        # over-sampling
        (
            "actors.rollout.over_sampling_groups=57",
            "$.actors.buffer.groups_max",
            "over_sampling_groups = 57 and prompts_per_step = 8",
        ),
        (
            "actors.rollout.partial_rollout=true",
            "$.actors.rollout.partial_rollout",
            "only in the synchronous mode",
        ),
        # limits
        ("limits.tokens_max=257", "$.limits.tokens_max", "more than the model's context of 256"),
        ("limits.reply_tokens_max=257", "$.limits.reply_tokens_max", "whole episode"),
        (
            "actors.trainer.microbatch_tokens_max=255",
            "$.actors.trainer.microbatch_tokens_max",
            "cannot hold one trajectory",
        ),
        (
            "actors.rollout.trajectories_in_flight_max=7",
            "$.actors.rollout.trajectories_in_flight_max",
            "one group has 8",
        ),
        ("actors.engine.running_max=129", "$.actors.engine.slots", "a row each"),
        ("actors.engine.requests_max=191", "$.actors.engine.requests_max", "192 episodes"),
        ("actors.session.sessions_max=100", "$.actors.session.sessions_max", "192 episodes"),
        ("limits.seconds_max=3871.0", "$.actors.rollout.lease_s", "may go on for 3901.0 s"),
        ("actors.rollout.lease_s=3629.0", "$.actors.rollout.lease_s", "only replies renew"),
        ("system.bus.body_bytes_max=2000000000", "$.system.bus.body_bytes_max", "than a frame"),
        (
            "actors.publisher.bucket_bytes_max=2000000000",
            "$.actors.publisher.bucket_bytes_max",
            "than a frame",
        ),
        ("system.bus.window_messages=5000", "$.system.bus.window_messages", "overfill an inbox"),
        ("system.timeouts.heartbeat_s=2.9", "$.system.timeouts.heartbeat_s", "once a second"),
        ("actors.engine.device=gpu", "$.actors.engine.device", 'no device is called "gpu"'),
        # engines that are servers
        ("actors.engine.sglang.python=x", "$.actors.engine.sglang", "reads none of it"),
        # parts by name
        ("model.family=qwen4", "$.model.family", 'no chat-template family "qwen4"'),
        ("actors.session.matcher=strikt", "$.actors.session.matcher", 'no matcher "strikt"'),
        ("actors.buffer.filters=['zero']", "$.actors.buffer.filters[0]", 'no filter "zero"'),
        # evaluation
        ("data.prompts=a.jsonl", "$.data.held_out_prompts", "no held-out part"),
        ("data.prompts=a.jsonl@[:-9]", "$.data.held_out_prompts", "no held-out part"),
    ],
)
def test_each_rule_tells_its_breach_at_its_place(override: str, where: str, told: str) -> None:
    found = problems(GRPO, override)
    assert [problem.where for problem in found] == [where]
    assert told in found[0].what
    assert found[0].remedy


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.minibatches_per_step=8",),
        ("actors.trainer.ranks=32",),
        ("actors.buffer.groups_max=8",),
        ("limits.tokens_max=255",),
        ("actors.trainer.microbatch_tokens_max=256",),
        ("actors.rollout.trajectories_in_flight_max=8",),
        ("actors.engine.slots=64", "actors.engine.running_max=64"),
        ("actors.engine.requests_max=96", "actors.engine.replicas=2"),
        ("limits.seconds_max=3870.0",),
        ("limits.seconds_max=60.0", "actors.rollout.lease_s=90.0"),
        ("actors.evaluator=false", "data.prompts=a.jsonl"),
        ("data.prompts=a.jsonl@[:-9]", "data.held_out_prompts=a.jsonl@[-9:]"),
        ("actors.engine.device=cuda:1",),
        ("algorithm.correction=clip_or_pop", "algorithm.correction_low=0.5"),
        ("algorithm.dual_clip=3.0",),
        ("actors.buffer.staleness_policy=pace", "actors.buffer.late=retry"),
        ("run.mode=sync", "algorithm.correction=none"),
        ("actors.rollout.over_sampling_groups=56",),
        (
            "run.mode=sync",
            "actors.rollout.over_sampling_groups=2",
            "actors.rollout.partial_rollout=true",
        ),
        ("actors.trainer.schedule.warmup_steps=500",),
        ("custom.watch_dog.core=m:f",),
    ],
)
def test_the_edge_of_each_rule_is_allowed(overrides: tuple[str, ...]) -> None:
    assert problems(GRPO, *overrides) == []


def test_a_lowest_rate_is_below_the_highest() -> None:
    linear = "actors.trainer.schedule.kind=linear"
    (found,) = problems(GRPO, linear, "actors.trainer.schedule.lr_min=1.0")
    assert (found.where, found.remedy) == ("$.actors.trainer.schedule.lr_min", "set it below lr")


@pytest.mark.parametrize(
    ("table", "given", "name", "value"),
    [
        ("algorithm", "correction=none", "correction_low", 0.5),
        ("algorithm", "correction=none", "correction_high", 1.5),
        ("algorithm", "normalize_std=false", "std_epsilon", 5.0),
        ("actors.trainer.schedule", "kind=constant", "lr_min", 1e-5),
    ],
)
def test_a_number_that_nothing_reads_is_refused(
    table: str, given: str, name: str, value: float
) -> None:
    """Whoever sets it believes in it."""
    chosen = f"{table}.{given}"
    (found,) = problems(GRPO, "run.mode=sync", chosen, f"{table}.{name}={value}")
    assert found.where == f"$.{table}.{name}"
    assert "has no effect with" in found.what
    assert problems(GRPO, "run.mode=sync", chosen) == []


@pytest.mark.parametrize("policy", ["drop", "pace"])
def test_a_policy_for_late_groups_needs_a_limit(policy: str) -> None:
    document = merge(GRPO, {"actors": {"buffer": False}})
    document = merge(document, {"actors": {"buffer": {"staleness_policy": policy}}})
    (found,) = problems(document)
    assert found.where == "$.actors.buffer.max_weight_staleness"


def test_paced_groups_are_not_over_sampled() -> None:
    """Pacing promises that what goes out in time is used in time."""
    pace = "actors.buffer.staleness_policy=pace"
    (found,) = problems(GRPO, pace, "actors.rollout.over_sampling_groups=1")
    assert found.where == "$.actors.rollout.over_sampling_groups"


def test_the_words_the_checks_know_are_those_the_actors_know() -> None:
    """The checks hold a copy, so that the supervisor loads no tokenizer."""
    assert parts.FAMILIES.keys() == FAMILIES.keys()
    assert {
        "default": Default.verified,
        **{name: each.verified for name, each in DECLARATIONS.items()},
    } == parts.FAMILIES
    assert set(parts.MATCHERS) == set(MATCHERS)
    assert set(parts.FILTERS) == set(BUILT_IN)
    assert set(parts.LEAF_PICKERS) == set(PICKERS)
    assert set(parts.LEAF_POST_PROCESSORS) == set(POST_PROCESSORS)


def test_a_tree_s_settings_are_refused_where_nothing_branches() -> None:
    """Somebody meant something by them."""
    tree = {"actors": {"session": {"tree": {"nodes_max": 7}}}}
    (found,) = problems(merge(GRPO, tree))
    assert found.where == "$.actors.session.tree"
    assert not problems(merge(GRPO, merge(tree, {"actors": {"session": {"history": "tree"}}})))


def test_leaf_hooks_have_names_that_exist() -> None:
    """A typing error would cost every trajectory of a run, at its end."""
    tree = {"history": "tree", "tree": {"leaf_picker": "drop_retry"}}
    (found,) = problems(merge(GRPO, {"actors": {"session": tree}}))
    assert found.where == "$.actors.session.tree.leaf_picker"
    assert "drop_retries" in found.remedy


def test_supervised_training_has_no_use_for_an_engine() -> None:
    """It would sit beside the run, hold memory and never be asked."""
    (found,) = problems(SFT, "actors.engine={}")
    assert found.where == "$.actors.engine"
    assert "no use for the actor `engine`" in found.what


def test_an_evaluator_without_anything_to_do_is_refused() -> None:
    found = problems(
        GRPO,
        "actors.evaluator.at_start=false",
        "actors.evaluator.at_end=false",
        "actors.evaluator.greedy=false",
        "actors.evaluator.sampled=false",
    )
    assert [problem.what for problem in found] == [
        "no evaluation at any time",
        "neither greedy nor sampled evaluation",
    ]


def test_the_same_file_for_training_and_evaluation_is_refused() -> None:
    """The score would measure memory."""
    (found,) = problems(GRPO, "data.prompts=a.jsonl", "data.held_out_prompts=a.jsonl")
    assert "are the training prompts" in found.what


def test_a_run_of_custom_actors_needs_one_that_ends_it() -> None:
    document = {"run": {"name": "toy", "steps": 1}, "custom": {"echo": {"core": "m:f"}}}
    (found,) = problems(document)
    assert found.what == "no actor says when this run is over"
    assert problems(document, "custom.echo.significant=true") == []


def test_a_recipe_that_makes_no_checkpoint_cannot_be_what_the_model_is_made_by() -> None:
    (unknown,) = problems(GRPO, 'model.path=""', "model.made_by=lookup_warmupp")
    assert unknown.where == "$.model.made_by"
    assert "did you mean `lookup_warmup`" in unknown.remedy
    (made,) = problems(GRPO, 'model.path=""', "model.made_by=lookup")
    assert "itself made by `lookup_warmup`" in made.what


def test_all_problems_of_a_stage_are_told_and_the_next_stage_is_not_tried() -> None:
    """Looking at files or importing code for a topology that cannot work would waste a minute."""
    subject = Subject(topology(GRPO, "sampling.top_k=5", "algorithm.kl_coef=1.0"), MACHINE)
    results = list(run_checks(CHECKS, subject))
    assert [checked.check for checked in results] == list(CHECKS)
    assert sum(len(checked.problems) for checked in results) == 2
    assert all(checked.skipped == (checked.check.stage > Stage.READING) for checked in results)


@pytest.mark.parametrize(("steps", "count"), [(199, 0), (200, 1)])
def test_a_few_steps_of_a_long_recipe_are_allowed_and_noted(steps: int, count: int) -> None:
    subject = Subject(topology(GRPO, f"actors.trainer.schedule.warmup_steps={steps}"), MACHINE)
    notes = [str(note) for checked in run_checks(READING, subject) for note in checked.notes]
    assert sum("optimizer steps, so lr 0.001 is not reached" in note for note in notes) == count


def test_no_limit_on_stale_weights_is_said_and_is_no_problem() -> None:
    document = merge(GRPO, {"actors": {"buffer": False}})
    subject = Subject(topology(document, "actors.buffer.groups_max=16"), MACHINE)
    noted = [note.where for checked in run_checks(READING, subject) for note in checked.notes]
    assert noted == ["$.actors.buffer.max_weight_staleness"]


def test_each_check_says_what_it_prevents_and_stages_go_from_free_to_costly() -> None:
    stages = [check.stage for check in CHECKS]
    assert stages == sorted(stages)
    assert all(check.prevents.endswith(".") for check in CHECKS)
    assert len({check.sentence for check in CHECKS}) == len(CHECKS)


def test_a_skipped_check_is_no_success() -> None:
    skipped = Checked(CHECKS[0], skipped=True)
    assert (skipped.problems, skipped.notes) == ((), ())


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("glm", "family glm is unverified"),
        ("default", "family default is unverified"),
        ("deepseek_v4", "family deepseek_v4 was tried on the vendor's tokenizer alone"),
        ("qwen3", ""),
    ],
)
def test_a_family_that_nobody_tried_on_its_model_is_named(family: str, told: str) -> None:
    """It may fit all the same: the proof says so, and a person should look at it once."""
    found = notes(GRPO, f"model.family={family}")
    assert [note.text.startswith(told) for note in found if "family" in note.where] == (
        [True] if told else []
    )


def test_a_batch_of_any_size_is_told_at_once() -> None:
    """All divisors of a number are not to be counted for one that is near."""
    overrides = ("algorithm.prompts_per_step=9223372036854775783", "actors.buffer.groups_max=9")
    first, second = problems(GRPO, *overrides, "algorithm.minibatches_per_step=1000000")
    assert (first.where, first.remedy) == ("$.algorithm.minibatches_per_step", "try 1")
    assert second.where == "$.actors.buffer.groups_max"
