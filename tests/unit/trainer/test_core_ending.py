"""The leading core: publications, checkpoints, drains and the end."""

from __future__ import annotations

from unit.trainer.play import batch, play, works

from milepost.actors.effects import Ask, Fail, Received, Reply, Request, Tell, WorkDone
from milepost.actors.trainer.works import (
    KeepMemory,
    ReadBack,
    SaveCheckpoint,
    TrainBatch,
)
from milepost.messages.buffer import BatchExhausted, CheckpointSaved
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import (
    Drain,
    Drained,
    PeerRestarted,
    StepRecorded,
    WorkFinished,
)
from milepost.messages.trainer import (
    KeepVersions,
    SendBytes,
    VersionFailed,
    VersionSent,
)

# ---- publications ------------------------------------------------------------------------


def test_a_version_is_announced_before_its_buckets() -> None:
    game = play()
    game.exported()
    told = [each.message for each in game.waiting if isinstance(each, Tell)][:2]
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


def test_a_publisher_that_restarts_during_an_export_gets_what_is_made_and_no_second_one() -> None:
    """The same work ordered twice ends the trainer, and with it the run."""
    game = play()
    game.receive(PeerRestarted(actor="publisher", incarnation=1), "supervisor")
    assert works(game) == ["export/0"]
    assert game.exported().version == 0
    assert game.take(VersionReady).version == 0
    assert works(game) == []
    game.published(0)
    assert game.core.statistics()["publishing"] is None


def test_a_late_word_of_failure_is_not_of_the_export_that_goes_on() -> None:
    """The publisher says it again when it cannot know that it was heard."""
    game = play()
    game.exported()
    failed = VersionFailed(version=0, serving=0, reason="no engine")
    game.receive(failed)
    game.receive(failed)
    assert works(game) == ["export/0"]
    game.exported()
    game.published(0)
    assert game.core.statistics()["publishing"] is None


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
    assert work.step == 2
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
    assert game.saved().step == 1
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


def test_a_run_resumed_at_its_end_publishes_what_it_has_and_finishes() -> None:
    """It was stopped while its last version was measured; the checkpoint is there, whole.

    To write it once more would take minutes of a large model, and twice the room on the disk.
    """
    game = play(version=4)
    assert not game.has(Ask)
    assert game.exported().final
    assert not game.has(SaveCheckpoint)
    game.published(4, final=True)
    assert game.take(WorkFinished).summary["checkpoint"] == "checkpoints/step_000004"
    assert not works(game)


def test_a_run_resumed_where_its_data_had_ended_early_does_not_save_that_version_again() -> None:
    """Three steps of four, measured half way; that it is over shows when a batch is asked for."""
    game = play(version=3)
    game.exported()
    game.published(3)
    game.answer(BatchExhausted(reason="6 prompts, all trained"))
    assert not game.has(SaveCheckpoint)
    summary = game.take(WorkFinished).summary
    assert summary["checkpoint"] == "checkpoints/step_000003"
    assert summary["ended_early"] == "6 prompts, all trained"


def test_a_step_that_was_trained_before_the_data_ended_is_saved_as_ever() -> None:
    """The checkpoint that was found is of the version before."""
    game = play(version=2)
    game.exported()
    game.published(2)
    game.step(2)
    game.answer(BatchExhausted(reason="6 prompts, all trained"))
    assert game.saved().step == 3


def test_the_time_of_the_last_checkpoint_is_recorded_although_no_step_follows() -> None:
    """A run that saves only at its end would otherwise never say how long that took."""
    game = play(steps=1, sft=True, publisher="")
    game.step(0)
    game.saved()
    told = [each for each in game.all(StepRecorded) if "perf/save_model_time" in each.metrics]
    assert [each.step for each in told] == [1]


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


def test_a_drain_does_not_wait_at_all_for_those_that_the_supervisor_knows_to_be_dead() -> None:
    """The end of a run took two seconds longer for a word that nobody could take."""
    game = play()
    game.step(0)
    dead = ("buffer", "rollout", "evaluator")
    request = game.ask(Drain(deadline_s=30.0, gone=dead))
    game.saved()
    assert game.has(CheckpointSaved), "their next life reads the same from the disk"
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


def test_bytes_and_memory_of_old_versions_are_the_publishers_to_ask_for() -> None:
    """While a step is being computed, too: an engine that starts again must not wait for it."""
    game = play(steps=9)
    game.exported()
    game.published(0)
    game.bring(0)
    request = Request("publisher", 7)
    asked = Received("publisher", SendBytes(version=0), request)
    assert game.core.handle(asked, 1.0) == [ReadBack("read/0/7", 0)]
    kept = Received("publisher", KeepVersions(versions=(0,), announced=3))
    assert game.core.handle(kept, 1.0) == [KeepMemory("keep/1", (0,), 3)]
    bucket = BucketReady(version=0, index=0, names=(), tensors=())
    assert game.core.handle(WorkDone("read/0/7", (bucket,)), 1.0) == [
        Tell("publisher", bucket),
        Reply(request, VersionSent(version=0, ok=True)),
    ]
    assert game.core.handle(WorkDone("keep/1", None), 1.0) == []
    game.core.handle(asked, 1.0)
    refused = VersionSent(version=0, ok=False, reason="NotHeld: version 0 is not on the GPU")
    failed = WorkDone("read/0/7", None, "NotHeld: version 0 is not on the GPU")
    assert game.core.handle(failed, 1.0) == [Reply(request, refused)]


def test_two_words_on_what_to_keep_may_come_before_the_first_is_carried_out() -> None:
    """A publication and the next version are a moment apart; the shell ends an actor that orders a
    work under the key of one that goes on."""
    game = play(steps=9)
    works: list[KeepMemory] = []
    for versions in ((0, 1), (1,)):
        word = Received("publisher", KeepVersions(versions=versions, announced=1))
        works += [one for one in game.core.handle(word, 1.0) if isinstance(one, KeepMemory)]
    assert [one.versions for one in works] == [(0, 1), (1,)]
    assert len({one.key for one in works}) == 2
    for one in works:
        assert game.core.handle(WorkDone(one.key, None), 1.0) == []
