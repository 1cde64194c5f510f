"""Every run ends, for a reason that is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.supervisor.runs import (
    ENGINE,
    ROLLOUT,
    TRAINER,
    Story,
    asked_to_drain,
    beat,
    plan,
    signals,
)

from milepost.messages.agent import RunEnds
from milepost.messages.supervisor import GuardTripped, StepRecorded, WorkFinished
from milepost.supervisor.book import Phase
from milepost.supervisor.events import (
    Broken,
    ChildExited,
    ChildStarted,
    DrainChild,
    DrainEnded,
    Event,
    Interrupted,
    StopRequested,
    TellChild,
    Tick,
)
from milepost.supervisor.outcome import Cause, RunStatus

ALL = ("trainer-0", "engine-0", "rollout")


def working() -> Story:
    story = Story()
    story.up()
    return story


def test_the_run_is_done_when_every_significant_actor_is() -> None:
    evaluator = plan("evaluator", significant=True)
    story = Story(TRAINER, ENGINE, ROLLOUT, evaluator)
    story.up()
    story.say("trainer-0", StepRecorded(source="trainer-0", step=3, metrics={}))
    story.finishes("trainer-0")
    assert signals(story.fresh) == [], "the evaluator still scores the last version"
    story.finishes("evaluator")
    assert signals(story.fresh) == [("rollout", "TERM"), ("evaluator", "TERM")]
    story.dies("rollout", code=0)
    story.dies("evaluator", code=0)
    assert signals(story.fresh) == [("trainer-0", "TERM"), ("engine-0", "TERM")]
    story.dies("engine-0", code=0)
    story.dies("trainer-0", code=0)
    verdict = story.verdict
    assert verdict is not None
    assert (verdict.status, verdict.exit_code, verdict.cause) == (RunStatus.DONE, 0, None)
    assert verdict.summaries == {"trainer-0": {"steps": 3}, "evaluator": {"steps": 3}}
    assert verdict.last_step == 3
    assert set(verdict.phase_seconds) == {"starting", "running", "stopping"}


def test_work_that_could_not_be_done_fails_the_run_though_everybody_came_to_the_end() -> None:
    """E.g. the last evaluation has no score: exit code 0 would say that all is well."""
    evaluator = plan("evaluator", significant=True)
    story = Story(TRAINER, ENGINE, ROLLOUT, evaluator)
    story.up()
    story.finishes("trainer-0")
    story.say("evaluator", WorkFinished(actor="evaluator", problem="version 3: no score"))
    for name in ("rollout", "evaluator", "engine-0", "trainer-0"):
        story.dies(name, code=0)
    verdict = story.verdict
    assert verdict is not None
    assert (verdict.status, verdict.exit_code) == (RunStatus.FAILED, 1)
    assert verdict.cause == Cause("evaluator", "version 3: no score")


def test_a_crash_after_the_work_is_done_does_not_undo_it() -> None:
    """Interpreters crash at exit in the strangest ways; the checkpoint is already written."""
    story = Story(TRAINER, plan("evaluator", significant=True))
    story.up()
    story.finishes("trainer-0")
    story.dies("trainer-0", by="SIGSEGV")
    assert story.core.book.phase is Phase.RUNNING
    story.finishes("evaluator")
    story.dies("evaluator", code=0)
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.DONE
    assert "died_after_work" in story.kinds()


def test_ctrl_c_drains_everybody_saves_and_then_stops_in_stages() -> None:
    story = working()
    story.tell(Interrupted("SIGINT"))
    assert asked_to_drain(story.fresh) == list(ALL)
    assert signals(story.fresh) == []
    for name in ALL:
        story.drains(name)
    assert signals(story.fresh) == [("rollout", "TERM")]
    for name in ("rollout", "trainer-0", "engine-0"):
        story.dies(name, code=0)
    verdict = story.verdict
    assert verdict is not None
    assert (verdict.status, verdict.exit_code) == (RunStatus.STOPPED, 1)
    assert verdict.cause is not None
    assert verdict.cause.text == "SIGINT"


def test_ctrl_c_twice_kills_everybody_now() -> None:
    story = working()
    story.tell(Interrupted("SIGINT"))
    story.tell(Interrupted("SIGINT"))
    assert signals(story.fresh) == [(name, "KILL") for name in ALL]
    for name in ALL:
        story.dies(name, by="SIGKILL")
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.STOPPED


def fails(story: Story) -> None:
    story.dies("rollout", code=1)


def is_asked_to_stop(story: Story) -> None:
    story.tell(StopRequested("milepost stop"))


@pytest.mark.parametrize("ends", [fails, is_asked_to_stop])
def test_a_first_ctrl_c_kills_no_trainer_that_saves_already(ends: Callable[[Story], None]) -> None:
    """Who sees a run fail presses Ctrl-C; the checkpoint of days of work is being written then."""
    story = working()
    ends(story)
    assert "trainer-0" in asked_to_drain(story.fresh)
    story.tell(Interrupted("SIGINT"))
    assert (signals(story.fresh), story.state("trainer-0")) == ([], "draining")
    story.tell(Interrupted("SIGINT"))
    assert ("trainer-0", "KILL") in signals(story.fresh)


def test_a_first_ctrl_c_while_all_stop_leaves_everybody_the_time_to_do_so() -> None:
    story = working()
    story.finishes("trainer-0")
    story.tell(Interrupted("SIGINT"))
    assert signals(story.fresh) == []
    story.tell(Interrupted("SIGINT"))
    assert signals(story.fresh) == [(name, "KILL") for name in ALL]


def test_work_that_finishes_during_the_drain_counts() -> None:
    story = working()
    story.tell(StopRequested("milepost stop"))
    story.finishes("trainer-0")
    for name in ALL:
        story.drains(name)
    for name in ("rollout", "trainer-0", "engine-0"):
        story.dies(name, code=0)
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.DONE


def test_one_that_does_not_drain_delays_the_stop_only_until_the_deadline() -> None:
    story = working()
    story.tell(Interrupted("SIGTERM"))
    story.drains("trainer-0")
    story.drains("rollout", error="no answer within 6 s")
    ordered = story.pass_time(7, beating=ALL)
    assert signals(ordered) == [("rollout", "TERM")]
    assert story.kinds().count("not_drained") == 2


def test_a_trainer_that_dies_while_it_saves_is_a_failure_not_a_clean_stop() -> None:
    """Ctrl-C promised a checkpoint; exit status and cause must not pretend there is one."""
    story = working()
    story.tell(Interrupted("SIGINT"))
    story.dies("trainer-0", code=1, log=("OSError: disk full",))
    for name in ("engine-0", "rollout"):
        story.drains(name)
    for name in ("rollout", "engine-0"):
        story.dies(name, code=0)
    verdict = story.verdict
    assert verdict is not None
    assert verdict.status is RunStatus.FAILED
    assert verdict.cause is not None
    assert verdict.cause.actor == "trainer-0"


def test_a_deaf_child_is_killed_after_its_stop_deadline() -> None:
    story = working()
    story.finishes("trainer-0")
    assert signals(story.pass_time(2)) == [("rollout", "KILL")]
    story.dies("rollout", by="SIGKILL")
    assert signals(story.fresh) == [("trainer-0", "TERM"), ("engine-0", "TERM")]
    story.dies("trainer-0", code=0)
    story.dies("engine-0", code=0)
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.DONE


def test_a_child_that_even_sigkill_does_not_end_is_named_and_the_run_ends() -> None:
    """A process in uninterruptible sleep (dead disk, dead GPU) must not hold the terminal."""
    story = working()
    story.dies("engine-0", by="SIGKILL")
    story.drains("trainer-0")
    story.dies("rollout", code=0)
    story.pass_time(4.5)
    verdict = story.verdict
    assert verdict is not None
    assert verdict.cause is not None
    assert verdict.cause.actor == "engine-0", "the first cause stays"
    assert "unkillable" in story.kinds()


@pytest.mark.parametrize(
    ("guard", "saves"), [("not_finite", False), ("no_spread", True), ("logprob_difference", True)]
)
def test_a_guard_ends_the_run_and_only_weights_that_are_no_numbers_are_not_saved(
    guard: str, *, saves: bool
) -> None:
    """A task that is solved has no spread either; its weights are what the run was for."""
    story = working()
    story.say("trainer-0", GuardTripped(actor="trainer-0", guard=guard, reason="so it is"))
    assert asked_to_drain(story.fresh) == ["trainer-0"] * saves
    if saves:
        assert signals(story.fresh) == []
        story.drains("trainer-0")
    assert signals(story.fresh) == [("rollout", "TERM")]
    for name in ("rollout", "trainer-0", "engine-0"):
        story.dies(name, code=0)
    verdict = story.verdict
    assert verdict is not None
    assert (verdict.status, verdict.exit_code) == (RunStatus.GUARD, 1)
    assert verdict.cause == Cause("trainer-0", f"guard {guard}: so it is")


def test_victims_of_the_stop_are_no_cause() -> None:
    """While stages go, the others lose their peers; their complaints mean nothing."""
    story = working()
    story.tell(Interrupted("SIGINT"))
    for name in ALL:
        story.drains(name)
    story.dies("trainer-0", code=1, log=("rollout is gone",))
    story.dies("rollout", code=0)
    story.dies("engine-0", code=0)
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.STOPPED


def test_the_last_line_that_an_actor_wrote_is_the_reason() -> None:
    """A core's `Fail` is written there, and nowhere else."""
    story = working()
    story.dies("rollout", code=1, log=("RO-3 (ledger): 5 != 4",))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == "rollout exited with code 1: RO-3 (ledger): 5 != 4"


def test_an_exit_without_an_order_is_a_failure_even_with_code_0() -> None:
    """A training job whose worker left quietly must not report success."""
    story = working()
    story.dies("trainer-0", code=0)
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == ("trainer-0 exited with code 0, although nobody had told it to stop")


def test_who_saves_is_told_who_will_never_hear_of_it() -> None:
    story = working()
    story.dies("rollout", code=1)
    (drain,) = [each for each in story.fresh if isinstance(each, DrainChild)]
    assert (drain.actor, drain.message.gone) == ("trainer-0", ("rollout",))


def test_a_broken_supervisor_still_lets_the_trainer_save() -> None:
    story = working()
    story.tell(Broken("metrics.jsonl: no space left on device"))
    assert asked_to_drain(story.fresh) == ["trainer-0"]


def test_a_full_disk_is_said_first_though_its_victim_has_no_last_words() -> None:
    """The victim's log is on the same disk, so its end is empty; the supervisor meets it next."""
    story = working()
    story.dies("engine-0", code=1)
    for _ in range(2):
        story.tell(Broken("the run folder cannot be written: [Errno 28] No space left on device"))
    cause = story.core.ending.cause
    assert cause is not None
    assert (cause.actor, cause.text) == ("engine-0", "disk full: engine-0 exited with code 1")
    story = working()
    story.tell(Broken("the registry cannot be written: [Errno 28] No space left on device"))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text.startswith("disk full: the registry cannot be written")


def test_a_message_that_no_supervisor_takes_is_not_ignored() -> None:
    story = working()
    story.say("engine-0", beat("engine-0"))
    story.say("engine-0", Tick())  # type: ignore[arg-type]
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == "engine-0 sent Tick, which no supervisor takes"


def random_event(data: st.DataObject, story: Story) -> Event | None:
    draw = data.draw
    name = draw(st.sampled_from(ALL))
    child = story.core.book.children[name]
    match draw(st.integers(0, 9)):
        case 0 | 1:
            story.hello(name)
        case 2 | 3:
            story.up(name)
        case 4:
            return ChildExited(name, child.incarnation, draw(st.integers(0, 2)), "", ())
        case 5:
            return ChildExited(name, child.incarnation, None, "SIGKILL", ())
        case 6:
            story.finishes(name)
        case 7:
            return DrainEnded(name, draw(st.sampled_from(("", "deadline"))))
        case 8:
            endings: tuple[Event, ...] = (
                Interrupted("SIGINT"),
                StopRequested("stop"),
                Broken("disk"),
            )
            return draw(st.sampled_from(endings))
        case _:
            story.pass_time(draw(st.sampled_from((0.5, 3.0, 12.0))))
    return None


@given(st.data())
def test_whatever_happens_every_run_ends_once(data: st.DataObject) -> None:
    """SV-4: any story, then only time passing and processes that die when killed."""
    again = plan("engine-0", order=0, restart=ENGINE.restart)
    story = Story(TRAINER, again, ROLLOUT)
    draw = data.draw
    for _ in range(draw(st.integers(0, 25))):
        if story.verdict is not None:
            break
        event = random_event(data, story)
        if event is not None:
            story.tell(event)
    if story.verdict is None:
        story.tell(StopRequested("enough"))
    for _ in range(20):
        if story.verdict is not None:
            break
        for name, _ in signals(story.pass_time(3.0)):
            story.dies(name, by="SIGKILL")
    assert story.verdict is not None
    assert (story.verdict.cause is None) == (story.verdict.status is RunStatus.DONE)
    assert story.core.book.living() == []


def test_starting_a_child_is_reported_with_its_pid() -> None:
    story = Story()
    story.tell(ChildStarted("rollout", 0, 4711))
    assert story.core.book.children["rollout"].pid == 4711


def goodbyes(story: Story) -> list[tuple[str, str]]:
    """What the door of the guests is told of the end."""
    return [
        (effect.message.status, effect.message.reason)
        for effect in story.effects
        if isinstance(effect, TellChild) and isinstance(effect.message, RunEnds)
    ]


def test_the_door_of_the_guests_hears_how_the_run_ends_before_it_is_stopped() -> None:
    """Agents from outside are nobody's children: only that door can say goodbye to them."""
    story = Story(TRAINER, plan("guests", order=2))
    story.up()
    story.finishes("trainer-0")
    assert goodbyes(story) == [("done", "every significant actor has finished its work")]
    assert ("guests", "TERM") in signals(story.effects)
    story = Story(TRAINER, plan("guests", order=2))
    story.up()
    story.dies("trainer-0", code=1)
    assert [status for status, _ in goodbyes(story)] == ["failed"]
    story = Story(TRAINER, plan("guests", order=2))
    story.up()
    story.tell(Interrupted("SIGINT"))
    assert [status for status, _ in goodbyes(story)] == ["stopped"]
