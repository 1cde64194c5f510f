"""The leading core: publications, checkpoints, drains, the end, and ranks that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.trainer.kit import VOCABULARY
from unit.trainer.play import PLAN, Play, batch, follow, play, works

from milepost.actors.effects import Ask, Fail, Reply, Tell, Unanswered, WorkDone
from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.works import (
    ExportVersion,
    SaveCheckpoint,
    ScoreTokens,
    TrainBatch,
)
from milepost.configs.load import load_topology
from milepost.messages.buffer import CheckpointSaved, GroupsRefused, StepTrained
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, Refused, WorkFinished
from milepost.messages.trainer import (
    PartChecked,
    RankOrder,
    RankOrdered,
    ScoreRows,
    VersionFailed,
)

TWO = ("trainer-0", "trainer-1")


# ---- publications ------------------------------------------------------------------------


def test_a_version_is_announced_before_its_buckets() -> None:
    game = play()
    game.exported()
    told = [each.message for each in game.waiting if isinstance(each, Tell)]
    assert [type(each) for each in told] == [VersionReady, BucketReady]


def test_versions_due_while_one_is_on_its_way_become_one_the_newest() -> None:
    """A slow publication must not pile up whole models; engines want the newest anyway."""
    game = play(steps=9)
    game.exported()
    for step in range(3):
        game.step(step)
    assert works(game) == []
    game.published(0)
    assert works(game) == ["export/3"]


def test_a_publication_that_ends_during_a_step_waits_for_whole_weights() -> None:
    game = play(steps=9)
    game.exported()
    game.step(0)
    game.bring(1)
    game.published(0)
    assert works(game) == ["train/1"], "now the weights are of no version"
    game.trained()
    assert game.exported().version == 2


def test_a_failed_publication_is_tried_with_the_present_weights_a_few_times() -> None:
    game = play(steps=9)
    game.exported()
    game.step(0)
    game.receive(VersionFailed(version=0, serving=0, reason="engine-0: disk full"))
    assert game.exported().version == 1
    game.receive(VersionFailed(version=1, serving=0, reason="engine-0: disk full"))
    game.exported()
    effects = game.receive(VersionFailed(version=1, serving=0, reason="engine-0: disk full"))
    assert effects == [Fail("3 publications failed, the last: engine-0: disk full")]


def test_one_success_forgives_earlier_failures() -> None:
    game = play(steps=9)
    for version in (0, 1, 2):
        game.exported()
        game.receive(VersionFailed(version=version, serving=0, reason="busy"))
        game.exported()
        game.published(version)
        game.step(version)
    assert game.core.statistics()["published"] == 2


def test_buckets_that_were_not_taken_are_a_failed_publication() -> None:
    game = play()
    game.exported()
    game.lost(VersionReady)
    assert works(game) == ["export/0"]
    game.lost(BucketReady)
    assert works(game) == ["export/0"], "its second half is no second failure"


def test_a_restarted_publisher_gets_the_present_version_again() -> None:
    game = play()
    game.exported()
    game.published(0)
    game.receive(PeerRestarted(actor="publisher", incarnation=1), "supervisor")
    assert game.exported().version == 0


def test_a_publication_nobody_ends_has_a_deadline_with_names() -> None:
    game = play(sync=True)
    game.exported()
    assert "waits for publisher to publish version 0" in game.core.working_on()
    (fail,) = game.wake("publish-late", after_s=1.0)
    assert isinstance(fail, Fail)
    assert "publisher to publish version 0 since 10.0, deadline 240 s" in fail.reason


# ---- checkpoints and the end -------------------------------------------------------------


def test_checkpoints_come_every_so_many_steps_and_name_all_groups_trained() -> None:
    game = play(checkpoint_every_steps=2, steps=9)
    game.step(0)
    assert not game.has(SaveCheckpoint)
    game.step(1)
    work = game.saved()
    assert (work.step, work.hugging_face) == (2, False)
    assert work.trained_group_ids == ("a0", "b0", "a1", "b1")
    listeners = [
        each.to
        for each in game.waiting
        if isinstance(each, Tell) and isinstance(each.message, CheckpointSaved)
    ]
    assert listeners == ["buffer", "rollout"]
    game.step(2)
    assert not game.has(SaveCheckpoint)


def test_the_work_is_finished_when_the_last_version_is_on_disk_and_in_the_engines() -> None:
    game = play(steps=1)
    game.exported()
    game.published(0)
    game.step(0)
    export = game.exported()
    assert (export.version, export.final) == (1, True)
    assert game.saved().hugging_face
    game.taken()
    assert not game.has(WorkFinished)
    game.published(1, final=True)
    summary = game.take(WorkFinished).summary
    assert summary["version"] == 1
    assert summary["hugging_face"] == "checkpoints/step_000001/hf"
    assert not game.has(Ask)


def test_without_a_publisher_the_checkpoint_is_enough() -> None:
    game = play(steps=1, sft=True, publisher="")
    game.step(0)
    game.saved()
    assert game.has(WorkFinished)


def test_the_final_publication_is_tried_again_when_it_fails() -> None:
    game = play(steps=1)
    game.exported()
    game.published(0)
    game.step(0)
    game.exported()
    game.saved()
    game.receive(VersionFailed(version=1, serving=0, reason="busy"))
    assert game.exported().final
    game.published(1, final=True)
    assert game.has(WorkFinished)


def test_a_resumed_trainer_goes_on_where_it_was() -> None:
    game = play(version=2, trained=("a0", "b0", "a1", "b1"), checkpoint_every_steps=2)
    assert works(game) == ["export/2"]
    assert game.requested().step == 2
    game.step(2)
    game.ask(Drain(deadline_s=30.0))
    assert game.saved().trained_group_ids == ("a0", "b0", "a1", "b1", "a2", "b2")


def test_a_run_resumed_at_its_end_only_finishes() -> None:
    game = play(version=4)
    assert not game.has(Ask)
    assert game.exported().final
    game.saved()
    game.published(4, final=True)
    assert game.has(WorkFinished)


# ---- drains ------------------------------------------------------------------------------


def test_a_drain_waits_for_the_step_saves_and_answers_when_that_is_known() -> None:
    game = play()
    game.bring(0)
    request = game.ask(Drain(deadline_s=30.0))
    assert not game.has(SaveCheckpoint)
    game.trained()
    assert game.saved().step == 1
    assert not game.has(Drained), "the buffer does not know of the checkpoint yet"
    game.taken()
    assert game.take(Reply).request == request
    assert not game.has(TrainBatch)
    assert not game.has(Ask)


def test_a_drain_does_not_wait_long_for_a_listener_that_is_dead() -> None:
    """The buffer was killed, and that is why the run ends: nobody will ever take the word."""
    game = play()
    game.step(0)
    request = game.ask(Drain(deadline_s=30.0))
    game.saved()
    game.lost(CheckpointSaved)
    assert not game.has(Drained)
    game.wake("last-words")
    assert game.take(Reply).request == request


def test_a_drain_while_waiting_saves_at_once_and_takes_no_batch_any_more() -> None:
    game = play()
    game.step(0)
    game.ask(Drain(deadline_s=30.0))
    assert game.saved().step == 1
    game.answer(batch(1))
    game.check()
    game.taken()
    assert game.has(Drained)
    assert not game.has(TrainBatch)


def test_a_drain_after_a_checkpoint_or_without_saving_writes_nothing() -> None:
    for checkpoint_every, save in ((1, True), (0, False)):
        game = play(checkpoint_every_steps=checkpoint_every)
        game.step(0)
        if checkpoint_every:
            game.saved()
            game.taken()
        game.ask(Drain(deadline_s=30.0, save=save))
        assert game.has(Drained)
        assert not game.has(SaveCheckpoint)


def test_a_drain_during_a_checkpoint_does_not_write_it_twice() -> None:
    game = play(checkpoint_every_steps=1)
    game.step(0)
    game.ask(Drain(deadline_s=30.0))
    game.saved()
    game.taken()
    assert game.has(Drained)
    assert not game.has(SaveCheckpoint)


# ---- ranks -------------------------------------------------------------------------------


def orders(game: Play) -> list[RankOrdered]:
    return game.all(RankOrdered)


def part(step: int, attempt: int = 0, refused: str = "") -> PartChecked:
    groups = (refused,) if refused else ()
    reasons = ("C3 same log-probs: nan",) if refused else ()
    return PartChecked(step=step, attempt=attempt, rank=1, group_ids=groups, reasons=reasons)


def test_a_step_begins_only_when_every_rank_has_a_checked_part() -> None:
    game = play(ranks=TWO)
    game.bring(0)
    assert not game.has(TrainBatch)
    assert "waits for trainer-1 to have step 0" in game.core.working_on()
    game.receive(part(0), "trainer-1")
    assert game.has(TrainBatch)
    assert [each.order for each in orders(game)] == [
        RankOrder.EXPORT,
        RankOrder.ASK,
        RankOrder.TRAIN,
    ]
    assert [each.index for each in orders(game)] == [0, 1, 2]


def test_what_another_ranks_door_refuses_is_refused_for_all() -> None:
    game = play(ranks=TWO)
    game.bring(0)
    game.receive(part(0, refused="b0"), "trainer-1")
    assert not game.has(TrainBatch)
    assert game.all(GroupsRefused)[0].group_ids == ("b0",)
    game.taken()
    ask = orders(game)[-1]
    assert (ask.order, ask.step, ask.attempt) == (RankOrder.ASK, 0, 1)
    game.answer(batch(0, ("a", "c")))
    game.check()
    game.receive(part(0, attempt=0), "trainer-1")
    assert not game.has(TrainBatch), "that was the part of the first attempt"
    game.receive(part(0, attempt=1), "trainer-1")
    assert game.has(TrainBatch)


def test_an_order_that_a_rank_does_not_take_ends_the_run_by_name() -> None:
    """The ranks meet in collectives: one that missed an order would hang all of them."""
    game = play(ranks=TWO)
    effects = game.lost(RankOrdered, "dead")
    assert effects == [Fail("trainer-1 did not take an order: dead")]


def order(index: int, what: RankOrder, step: int = 0, **fields: object) -> RankOrdered:
    return RankOrdered(index=index, order=what, step=step, **fields)  # type: ignore[arg-type]


def test_a_following_rank_fetches_checks_and_trains_as_it_is_told() -> None:
    game = follow()
    game.receive(order(0, RankOrder.EXPORT), "trainer-0")
    assert game.take(ExportVersion).version == 0
    game.receive(order(1, RankOrder.ASK), "trainer-0")
    requested = game.requested()
    assert (requested.rank, requested.world_size) == (1, 2)
    game.answer(batch(0))
    game.check({"b0": "C1"}, oldest=3)
    found = game.take(PartChecked)
    assert (found.rank, found.group_ids, found.oldest) == (1, ("b0",), {"a0": 3})
    game.receive(order(2, RankOrder.ASK, attempt=1), "trainer-0")
    game.answer(batch(0, ("a", "c")))
    game.check()
    assert game.take(PartChecked).attempt == 1
    game.receive(order(3, RankOrder.TRAIN), "trainer-0")
    assert game.take(TrainBatch).batch.group_ids == ("a0", "c0")
    game.receive(order(4, RankOrder.SAVE, 1, final=True), "trainer-0")
    assert game.take(SaveCheckpoint).hugging_face
    game.receive(order(5, RankOrder.SCORE, 1), "trainer-0")
    assert game.has(ScoreTokens)


def test_a_gap_in_the_orders_ends_a_following_rank() -> None:
    game = follow()
    effects = game.receive(order(1, RankOrder.ASK), "trainer-0")
    assert effects == [Fail("order 1 came after 0 orders: a gap")]


def test_a_following_rank_drains_only_when_nothing_more_is_asked_of_it() -> None:
    """Rank 0 may still need it for the checkpoint that the drain itself makes."""
    game = follow()
    game.ask(Drain(deadline_s=30.0))
    assert not game.has(Drained)
    game.receive(order(0, RankOrder.SAVE, 1), "trainer-0")
    work = game.take(SaveCheckpoint)
    game.receive(order(1, RankOrder.FINISH, 1), "trainer-0")
    assert not game.has(Drained)
    game.feed(WorkDone(work.key, None))
    assert game.has(Drained)


def test_a_following_rank_sends_askers_to_rank_0() -> None:
    game = follow()
    game.ask(ScoreRows(version=0, rows=()), "publisher")
    assert "follows trainer-0, ask there" in game.take(Refused).reason


def test_a_following_rank_asks_a_restarted_buffer_again() -> None:
    game = follow()
    game.receive(order(0, RankOrder.ASK), "trainer-0")
    old = game.take(Ask)
    game.receive(PeerRestarted(actor="buffer", incarnation=1), "supervisor")
    game.feed(Unanswered(old.key, "buffer", "dead"))
    game.bring(0)
    assert game.has(PartChecked)


# ---- the plan ----------------------------------------------------------------------------


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
    core = Trainer.of(replace(PLAN), vocabulary=VOCABULARY, tokenizer_hash="")
    game = Play(core)
    with pytest.raises(TypeError, match="trainer-0 was told StepTrained by buffer"):
        game.receive(StepTrained(step=0, version=1, group_ids=()), "buffer")
