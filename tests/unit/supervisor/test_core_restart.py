"""What happens when an actor dies, or falls silent, at work."""

from __future__ import annotations

import pytest
from unit.supervisor.runs import (
    ROLLOUT,
    TRAINER,
    Story,
    asked_to_drain,
    beat,
    plan,
    signals,
    starts,
    told,
)

from milepost.configs.actors import RestartConfig
from milepost.supervisor.events import NotTaken, Tick
from milepost.supervisor.outcome import RunStatus
from milepost.supervisor.restart import Again, Decision, GiveUp, LetRest, decide

PERMANENT = RestartConfig(policy="permanent", restarts_max=2, window_s=60, backoff_s=0.5)
TRANSIENT = RestartConfig(policy="transient", restarts_max=2, window_s=60, backoff_s=0.5)
ENGINE = plan("engine-0", order=0, restart=PERMANENT)
AGENT = plan("agent-0", order=2, restart=TRANSIENT)


def working() -> Story:
    story = Story(TRAINER, ENGINE, AGENT, ROLLOUT)
    story.up()
    return story


def test_a_permanent_actor_comes_back_and_everyone_is_told() -> None:
    """Sessions that wait for the dead engine must hear of it, not run into their deadline."""
    story = working()
    story.dies("engine-0", by="SIGKILL")
    assert told(story.fresh) == [
        (name, "PeerRestarted") for name in ("trainer-0", "agent-0", "rollout")
    ]
    assert starts(story.pass_time(0.5)) == [("engine-0", 1)]
    story.up("engine-0")
    assert told(story.fresh) == [("engine-0", "Begin")]
    assert story.state("engine-0") == "running"


def test_a_temporary_actor_ends_the_run_and_is_named() -> None:
    story = working()
    story.dies("rollout", code=3, log=("AssertionError: ledger",))
    assert asked_to_drain(story.fresh) == ["trainer-0"]
    story.drains("trainer-0")
    assert signals(story.fresh) == [("agent-0", "TERM")]
    for name in ("agent-0", "trainer-0", "engine-0"):
        story.dies(name, code=0)
    verdict = story.verdict
    assert verdict is not None
    assert (verdict.status, verdict.exit_code) == (RunStatus.FAILED, 1)
    assert verdict.cause is not None
    assert verdict.cause.text == "rollout exited with code 3: AssertionError: ledger"


def test_a_dead_trainer_is_not_asked_to_save() -> None:
    story = working()
    story.dies("trainer-0", by="SIGSEGV")
    assert asked_to_drain(story.fresh) == []
    assert signals(story.fresh) == [("rollout", "TERM")]


def test_too_many_restarts_end_the_run_with_the_count() -> None:
    story = working()
    for _ in range(2):
        story.dies("engine-0", code=1, log=("CUDA error",))
        story.pass_time(2, beating=("trainer-0", "agent-0", "rollout"))
        story.up("engine-0")
    story.dies("engine-0", code=1, log=("CUDA error",))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == (
        "engine-0 exited with code 1: CUDA error (restarted 2 times within 60 s, restarts_max is 2)"
    )


def test_an_actor_that_dies_while_it_comes_back_counts_as_another_restart() -> None:
    story = working()
    story.dies("engine-0", code=1)
    story.pass_time(0.5)
    story.born("engine-0")
    story.dies("engine-0", code=1)
    assert story.state("engine-0") == "restarting"
    assert starts(story.pass_time(1.0)) == [("engine-0", 2)], "the back-off doubles"


def test_a_late_word_of_the_dead_incarnation_changes_nothing() -> None:
    story = working()
    story.dies("engine-0", code=1)
    story.say("engine-0", beat("engine-0", progress=9), incarnation=0)
    assert story.core.book.children["engine-0"].heartbeat is None


def test_a_silent_worker_is_killed_and_named_with_its_last_words() -> None:
    """SIGSTOP: its process exists, its sockets are open, only the heartbeats tell."""
    story = working()
    story.say("rollout", beat("rollout", working_on="waits for credits since 3 s"))
    ordered = story.pass_time(9, beating=("trainer-0", "agent-0", "engine-0"))
    assert signals(ordered) == [("rollout", "KILL")]
    story.dies("rollout", by="SIGKILL")
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == (
        "rollout was killed by SIGKILL: silent for 9.0 s (deadline 9 s), the last it worked on:"
        " waits for credits since 3 s"
    )


def test_the_silent_one_is_blamed_not_the_first_who_suffers() -> None:
    """The actor that reports a time-out is the victim; who stopped first is the cause."""
    story = working()
    story.pass_time(5, beating=("trainer-0", "agent-0", "rollout"))
    story.dies("rollout", code=1, log=("no answer of engine-0 within 4 s",))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.actor == "engine-0"
    assert cause.text == (
        "engine-0 has been silent for 5.0 s; then rollout exited with code 1:"
        " no answer of engine-0 within 4 s"
    )


def test_of_two_deaths_at_one_moment_the_signal_is_the_cause() -> None:
    """A killed rank takes its siblings along; which exit is seen first means nothing."""
    story = working()
    story.dies("rollout", code=1, log=("peer closed the connection",))
    story.dies("trainer-0", by="SIGKILL")
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.actor == "trainer-0"


def test_later_deaths_do_not_replace_the_first_cause() -> None:
    story = working()
    story.dies("trainer-0", code=1)
    story.pass_time(1)
    story.dies("engine-0", by="SIGKILL")
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.actor == "trainer-0"


def test_a_supervisor_that_stood_still_blames_nobody() -> None:
    """Ctrl-Z stops the supervisor, not its children: an hour later all of them look silent."""
    story = working()
    story.tell(Tick(), after_s=3600)
    assert signals(story.effects) == []
    assert signals(story.pass_time(8.5)) == []
    assert len(signals(story.pass_time(0.5))) == 4


def test_a_stall_of_everybody_is_said_once_and_kills_nobody() -> None:
    story = working()
    names = ("trainer-0", "engine-0", "agent-0", "rollout")
    story.pass_time(20, beating=names)
    assert story.kinds().count("stalled") == 1
    assert signals(story.effects) == []


def test_news_of_a_restart_that_is_not_taken_is_recorded_only() -> None:
    story = working()
    story.dies("engine-0", code=1)
    news = next(e.message for e in story.fresh if getattr(e, "actor", "") == "rollout")  # type: ignore[union-attr]
    story.tell(NotTaken("rollout", 0, news, "deadline"))
    assert "not_taken" in story.kinds()
    assert signals(story.effects) == []


@pytest.mark.parametrize(
    ("policy", "clean", "significant", "expected"),
    [
        (PERMANENT, True, False, Again(10.5, (10.0,))),
        (PERMANENT, False, True, Again(10.5, (10.0,))),
        (TRANSIENT, True, False, LetRest()),
        (TRANSIENT, True, True, GiveUp("the run waits for its work")),
        (TRANSIENT, False, False, Again(10.5, (10.0,))),
        (RestartConfig(), True, False, GiveUp("")),
        (RestartConfig(), False, False, GiveUp("")),
    ],
)
def test_the_restart_policies(
    policy: RestartConfig, *, clean: bool, significant: bool, expected: Decision
) -> None:
    decision = decide(policy, clean=clean, significant=significant, restarts=(), now_s=10.0)
    assert decision == expected


def test_restarts_outside_the_window_are_forgotten() -> None:
    old = (1.0, 2.0, 3.0)
    decision = decide(PERMANENT, clean=False, significant=False, restarts=old, now_s=63.5)
    assert decision == Again(64.0, (63.5,))


def test_the_backoff_doubles_up_to_its_ceiling() -> None:
    policy = RestartConfig(policy="permanent", restarts_max=100, window_s=1000, backoff_s=1)
    restarts: tuple[float, ...] = ()
    delays = []
    for _ in range(7):
        decision = decide(policy, clean=False, significant=False, restarts=restarts, now_s=5.0)
        assert isinstance(decision, Again)
        restarts = decision.restarts
        delays.append(decision.at_s - 5.0)
    assert delays == [1, 2, 4, 8, 16, 30, 30]
