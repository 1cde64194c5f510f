"""The leading core: batches, steps, refusals at the door, scores."""

from __future__ import annotations

import pytest
from unit.trainer.play import GOOD, Play, batch, play, works

from milepost.actors.effects import Ask, Fail, Reply, Unanswered, Wake, WorkDone
from milepost.actors.trainer.intake import IntakeFailed
from milepost.actors.trainer.works import (
    CheckBatch,
    SaveCheckpoint,
    ScoreTokens,
    TrainBatch,
)
from milepost.messages.buffer import BatchExhausted, GroupsRefused, StepTrained
from milepost.messages.bulk import Bulk
from milepost.messages.supervisor import (
    Drain,
    EventReported,
    PeerRestarted,
    Refused,
    StepRecorded,
    WorkFinished,
)
from milepost.messages.trainer import PartChecked, RowsScored, ScoreRows, VersionPublished

ROWS = (Bulk("int32", (2,), bytes(8)),)


def test_it_starts_with_the_first_version_and_the_first_batch_at_once() -> None:
    """Engines need version 0 to sample the very batch that is asked for."""
    game = play()
    assert works(game) == ["export/0"]
    assert game.requested().step == 0
    assert game.requested().version == 0


def test_a_step_names_its_groups_to_the_buffer_and_its_metrics_to_the_supervisor() -> None:
    game = play()
    game.exported()
    game.now_s = 12.0
    game.bring(0)
    game.now_s = 14.0
    game.trained()
    assert game.take(StepTrained) == StepTrained(step=0, version=1, group_ids=("a0", "b0"))
    export, line = game.all(StepRecorded)[:2]
    assert (export.step, export.metrics) == (0, {"perf/export_time": 0.01})
    metrics = line.metrics
    assert metrics["rollout/raw_reward"] == 0.5
    assert metrics["train/loss"] == 0.5
    assert metrics["train/version"] == 1
    assert metrics["train/step"] == 0
    assert metrics["perf/step_time"] == 4.0
    assert metrics["perf/train_wait_time"] == 2.0
    assert metrics["perf/wait_time_ratio"] == 0.5
    assert metrics["perf/batch_wait_time"] == 0.25


def test_asynchronous_training_goes_on_while_its_version_is_published() -> None:
    game = play()
    game.exported()
    game.published(0)
    game.step(0)
    assert works(game) == ["export/1"]
    assert game.requested().step == 1
    game.bring(1)
    assert works(game) == ["export/1", "train/1"], "the export comes first: weights of version 1"


def test_synchronous_training_waits_for_the_published_version() -> None:
    game = play(sync=True)
    assert not game.has(Ask), "nothing can be sampled before version 0 is served"
    game.exported()
    game.published(0)
    game.step(0)
    assert not game.has(Ask)
    game.exported()
    game.published(1)
    assert game.requested().step == 1


def test_synchronous_training_that_publishes_seldom_waits_only_for_what_is_due() -> None:
    game = play(sync=True, publish_every_steps=2)
    game.exported()
    game.published(0)
    game.step(0)
    assert game.requested().step == 1
    game.step(1)
    assert not game.has(Ask)
    assert game.exported().version == 2


def test_the_next_batch_is_fetched_during_a_step_only_where_ages_do_not_matter() -> None:
    eager, late = play(prefetch=True), play(prefetch=False)
    for game in (eager, late):
        game.bring(0)
    assert eager.requested().step == 1
    assert eager.requested().version == 1, "the version it will be trained on"
    assert not late.has(Ask)
    eager.answer(batch(1))
    eager.check()
    assert not any(key == "train/1" for key in works(eager)), "one step at a time"
    eager.trained()
    assert works(eager)[-1] == "train/1"


def test_no_batch_is_fetched_beyond_the_last_step() -> None:
    game = play(prefetch=True, steps=1)
    game.bring(0)
    assert not game.has(Ask)


# ---- the door ----------------------------------------------------------------------------


def test_refused_groups_are_named_and_the_batch_is_asked_for_again_once_that_is_known() -> None:
    """Were the question to overtake the refusal, the buffer would hand out the same groups."""
    game = play()
    game.answer(batch(0))
    game.check({"b0": "C1 same tokens: prefix [0, 9) hashes to x"})
    assert not game.has(TrainBatch)
    assert not game.has(Ask)
    (refused,) = game.all(GroupsRefused)
    assert (refused.step, refused.group_ids) == (0, ("b0",))
    assert refused.reasons[0].startswith("C1 same tokens")
    assert "C1 same tokens" in game.take(EventReported).text
    game.taken()
    assert game.requested().step == 0
    game.answer(batch(0, ("a", "c")))
    game.check()
    game.trained()
    assert game.take(StepTrained).group_ids == ("a0", "c0")


def test_a_buffer_that_sends_a_refused_group_again_is_an_error() -> None:
    game = play()
    game.answer(batch(0))
    game.check({"b0": "C1"})
    game.taken()
    with pytest.raises(IntakeFailed, match=r"\['b0'\] again, which the door refused"):
        game.answer(batch(0))


def test_a_buffer_that_died_with_the_word_of_a_refusal_is_told_once_more() -> None:
    """It took the word, died before it was written down, and its next life hands out the same."""
    game = play()
    game.answer(batch(0))
    game.check({"b0": "C1"})
    game.taken()
    game.waiting.clear()
    game.receive(PeerRestarted(actor="buffer", incarnation=1), "supervisor")
    game.answer(batch(0))
    game.check({"b0": "C1"})
    assert not game.has(TrainBatch)
    assert game.take(GroupsRefused).group_ids == ("b0",)


@pytest.mark.parametrize("num_steps", range(3))
def test_a_question_that_found_nobody_is_not_asked_again_once_another_was(num_steps: int) -> None:
    """The buffer died and returned in the meantime: the same step would come twice."""
    game = play()
    asked = game.take(Ask)
    game.feed(Unanswered(asked.key, "buffer", "died"))
    game.receive(PeerRestarted(actor="buffer", incarnation=1), "supervisor")
    if num_steps:
        game.answer(batch(0))
    if num_steps > 1:
        game.check()
    game.waiting = [each for each in game.waiting if not isinstance(each, Ask)]
    game.wake("batch-again")
    assert not game.has(Ask)


def test_a_door_that_refuses_for_ever_ends_the_run() -> None:
    game = play()
    effects = []
    for attempt in range(17):
        game.answer(batch(0, (f"g{attempt}-",)))
        effects = game.check({f"g{attempt}-0": "C4 same version: no span"})
        game.taken()
    (fail,) = [each for each in effects if isinstance(each, Fail)]
    assert "17 batches of step 0: C4 same version" in fail.reason


def test_a_batch_of_another_step_is_an_error() -> None:
    game = play()
    with pytest.raises(IntakeFailed, match="sent step 1, asked was step 0"):
        game.answer(batch(1))


def test_a_failing_door_is_an_error_and_no_open_door() -> None:
    game = play()
    game.answer(batch(0))
    work = game.take(CheckBatch)
    with pytest.raises(IntakeFailed, match="MemoryError"):
        game.feed(WorkDone(work.key, None, "MemoryError: 9 GiB"))


def test_age_is_judged_when_the_step_begins() -> None:
    """The batch was young when it came; meanwhile engines moved on, and rank 1 was slow."""
    ranks = ("trainer-0", "trainer-1")
    for published, trains in ((2, True), (3, False)):
        game = play(version=3, ranks=ranks, staleness_max=1, refuses_stale=True)
        game.answer(batch(3))
        game.check(oldest=1)
        game.receive(VersionPublished(version=published))
        game.receive(PartChecked(step=3, attempt=0, rank=1, oldest={"a3": 2}), "trainer-1")
        assert game.has(TrainBatch) == trains
        if not trains:
            (refused,) = game.all(GroupsRefused)
            assert refused.group_ids == ("a3", "b3")
            assert "version 1, published is 3, the limit is 1" in refused.reasons[0]


def test_stale_groups_are_trained_where_they_are_to_be_corrected() -> None:
    game = play(version=3, staleness_max=1, refuses_stale=False)
    game.published(3)
    game.bring(3, oldest=0)
    assert game.has(TrainBatch)


# ---- the buffer --------------------------------------------------------------------------


def test_an_unanswered_question_is_asked_again_after_a_moment() -> None:
    """Long episodes outlast any deadline of a question; the wait is not an error."""
    game = play()
    asked = game.take(Ask)
    game.feed(Unanswered(asked.key, "buffer", "deadline of 60 s"))
    game.wake("batch-again")
    assert game.requested().step == 0
    game.bring(0)
    assert game.has(TrainBatch)


def test_a_restarted_buffer_is_asked_again_and_told_again_what_was_trained() -> None:
    game = play()
    game.step(0)
    game.bring(1)
    game.trained()
    game.take(StepTrained)
    old = game.take(Ask)
    game.receive(PeerRestarted(actor="buffer", incarnation=1), "supervisor")
    assert game.take(StepTrained).step == 1
    assert game.requested().step == 2
    game.feed(Unanswered(old.key, "buffer", "it died"))
    game.bring(2)
    assert game.has(TrainBatch)


def test_what_was_trained_is_told_until_it_is_taken() -> None:
    game = play()
    game.bring(0)
    game.trained()
    for _ in range(19):
        game.lost(StepTrained)
        (key,) = [key for key in _timers(game) if key.startswith("sure/")]
        game.wake(key)
    (fail,) = [each for each in game.lost(StepTrained) if isinstance(each, Fail)]
    assert "buffer did not take StepTrained in 20 tries" in fail.reason


def _timers(game: Play) -> list[str]:
    return [each.key for each in game.waiting if isinstance(each, Wake)]


def test_the_end_of_the_data_ends_the_work_early() -> None:
    game = play()
    game.exported()
    game.published(0)
    game.step(0)
    game.exported()
    game.published(1)
    game.answer(BatchExhausted(reason="42 prompts, all trained"))
    assert game.saved().step == 1
    assert game.has(WorkFinished)
    final = [each for each in game.all(VersionPublished) if each.final]
    assert final == [VersionPublished(version=1, final=True)], "version 1 is served already"


def test_a_trainer_that_is_out_of_step_with_the_buffer_fails_and_does_not_finish() -> None:
    """No data ended: a run that reported success here would have trained too little in silence."""
    game = play()
    game.step(0)
    with pytest.raises(IntakeFailed, match=r"refused the batch of step 1: .* next one is 3"):
        game.answer(Refused(reason="rank 0 asks for the batch of step 1, the next one is 3"))


def test_in_a_drain_the_buffers_word_that_no_batch_comes_finishes_nothing() -> None:
    """It can overtake the supervisor's order by any time; the run is stopped, not done."""
    game = play()
    game.exported()
    game.published(0)
    game.step(0)
    game.exported()
    game.published(1)
    game.answer(BatchExhausted(reason="the buffer drains", draining=True))
    assert not game.has(SaveCheckpoint)
    assert "waits for the order to drain" in game.core.working_on()
    game.ask(Drain(deadline_s=30.0))
    assert game.saved().step == 1
    game.taken()
    assert not game.has(WorkFinished)


# ---- scores ------------------------------------------------------------------------------


def test_rows_are_scored_under_the_version_asked_for_or_not_at_all() -> None:
    game = play()
    request = game.ask(ScoreRows(version=0, rows=ROWS), "publisher")
    work = game.take(ScoreTokens)
    game.feed(WorkDone(work.key, ROWS))
    reply = game.take(Reply)
    assert reply.request == request
    assert reply.message == RowsScored(version=0, logprobs=ROWS)
    game.ask(ScoreRows(version=1, rows=ROWS), "publisher")
    assert "asked for version 1, the weights are version 0" in game.take(Refused).reason
    game.bring(0)
    game.ask(ScoreRows(version=0, rows=ROWS), "publisher")
    assert "being trained on" in game.take(Refused).reason


def test_work_that_failed_ends_the_actor_with_its_text() -> None:
    game = play()
    game.bring(0)
    work = game.take(TrainBatch)
    effects = game.feed(WorkDone(work.key, None, "BatchDiffers: minibatch 0 says 12"))
    assert effects == [Fail("train/0 failed: BatchDiffers: minibatch 0 says 12")]


def test_what_it_works_on_is_named() -> None:
    game = play()
    assert "waits for the batch of step 0 from buffer since 10.0" in game.core.working_on()
    game.bring(0)
    assert game.core.working_on() == "trains step 0 since 10.0"
    assert game.core.statistics()["version"] == 0
    game.trained(GOOD)
    assert game.core.statistics()["version"] == 1
