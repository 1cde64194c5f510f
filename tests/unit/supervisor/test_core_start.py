"""From the order to start until everybody works."""

from __future__ import annotations

from unit.supervisor.runs import SCHEMA, Story, signals, starts, told

from milepost.actors.effects import Request
from milepost.messages.supervisor import Hello, Ready, Refused, Welcome
from milepost.supervisor.events import (
    Answer,
    ChildNotStarted,
    Effect,
    Interrupted,
    NotTaken,
    Record,
    Said,
    TellChild,
)
from milepost.supervisor.outcome import RunStatus


def answers(effects: list[Effect]) -> list[type]:
    return [type(each.message) for each in effects if isinstance(each, Answer)]


def test_every_process_is_ordered_at_once() -> None:
    """Imports are the slow part of a start, so nobody waits for anybody."""
    story = Story()
    assert starts(story.effects) == [("trainer-0", 0), ("engine-0", 0), ("rollout", 0)]


def test_nobody_begins_before_the_last_one_is_ready() -> None:
    """SV-2: a rollout that begins early would talk to engines that do not listen yet."""
    story = Story()
    story.up("trainer-0", "rollout")
    assert told(story.effects) == []
    story.up("engine-0")
    assert told(story.fresh) == [(name, "Begin") for name in ("trainer-0", "engine-0", "rollout")]


def test_a_hello_is_welcomed_and_may_be_repeated() -> None:
    """The bus may deliver a retry after the first answer was lost."""
    story = Story()
    story.born("rollout")
    assert answers(story.hello("rollout")) == [Welcome]
    assert answers(story.hello("rollout")) == [Welcome]


def test_a_child_of_another_commit_is_refused_and_named() -> None:
    story = Story()
    story.born("engine-0")
    assert answers(story.hello("engine-0", schema="ffff")) == [Refused]
    story.dies("engine-0", code=1, log=("RuntimeError: refused",))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == (
        "engine-0 exited with code 1: engine-0 speaks message schema ffff, this supervisor a1b2:"
        " start both from one commit"
    )


def test_a_child_of_an_earlier_life_is_refused_and_harms_nobody() -> None:
    story = Story()
    story.born("engine-0")
    assert answers(story.hello("engine-0", incarnation=7)) == [Refused]
    assert story.state("engine-0") == "new"


def test_a_stranger_who_claims_a_name_is_refused() -> None:
    """Same name, other process: the one we started owns the name."""
    story = Story()
    story.born("engine-0", pid=51)
    hello = Hello(actor="engine-0", incarnation=0, pid=50, schema=SCHEMA)
    ordered = story.tell(Said("engine-0", 0, hello, Request("engine-0", 1)))
    assert [each.message for each in ordered if isinstance(each, Answer)] == [
        Refused(reason="engine-0 said HELLO from pid 50, but its process is 51")
    ]
    assert story.state("engine-0") == "new"


def test_a_child_that_dies_at_the_start_ends_the_wait_at_once() -> None:
    """Waiting out a deadline for a process that is gone is the commonest silent start."""
    story = Story()
    story.born("trainer-0")
    story.hello("trainer-0")
    story.dies("engine-0", code=1, log=("Traceback ...", "ImportError: no module named flux"))
    assert signals(story.fresh) == [("rollout", "TERM")]
    story.dies("rollout", code=None, by="SIGTERM")
    assert signals(story.fresh) == [("trainer-0", "TERM")]
    story.dies("trainer-0", code=0)
    verdict = story.verdict
    assert verdict is not None
    assert verdict.status is RunStatus.FAILED
    assert verdict.exit_code == 1
    assert verdict.cause is not None
    assert verdict.cause.actor == "engine-0"
    assert verdict.cause.exit_code == 1
    assert verdict.cause.log_tail[-1] == "ImportError: no module named flux"
    assert verdict.cause.text == "engine-0 exited with code 1: ImportError: no module named flux"


def test_a_process_that_cannot_be_started_is_named() -> None:
    story = Story()
    story.tell(ChildNotStarted("rollout", 0, "too many open files"))
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == "rollout could not be started: too many open files"


def test_no_hello_in_time_is_a_failure_with_its_deadline() -> None:
    story = Story()
    story.born("rollout")
    story.up("trainer-0", "engine-0")
    ordered = story.pass_time(10)
    assert signals(ordered) == [("rollout", "KILL")]
    story.dies("rollout", by="SIGKILL")
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == "rollout was killed by SIGKILL: no HELLO within 10 s of its start"


def test_not_ready_in_time_is_a_failure_with_its_deadline() -> None:
    story = Story()
    story.up("trainer-0", "rollout")
    story.born("engine-0")
    story.hello("engine-0")
    assert signals(story.pass_time(19)) == []
    assert signals(story.pass_time(1)) == [("engine-0", "KILL")]


def test_a_long_start_says_every_few_seconds_who_is_missing() -> None:
    story = Story()
    story.up("trainer-0", "rollout")
    texts = [
        each.message.text
        for each in story.pass_time(6)
        if isinstance(each, Record) and hasattr(each.message, "text")
    ]
    assert texts == ["waiting for 1 of 3: engine-0 (HELLO, 5.0 s of 10 s)"]


def test_ctrl_c_during_the_start_stops_without_a_drain() -> None:
    """Nobody has begun, so there is nothing to save."""
    story = Story()
    story.up("trainer-0")
    story.tell(Interrupted("SIGINT"))
    assert signals(story.fresh) == [("rollout", "TERM")]
    for name in ("rollout", "trainer-0", "engine-0"):
        story.dies(name, by="SIGTERM")
    assert story.verdict is not None
    assert story.verdict.status is RunStatus.STOPPED
    assert story.verdict.exit_code == 1


def test_a_begin_that_is_not_taken_is_no_silent_hang() -> None:
    """The actor said READY, then its loop died: without this it would just never work."""
    story = Story()
    story.up()
    begin = next(each.message for each in story.effects if isinstance(each, TellChild))
    story.tell(NotTaken("engine-0", 0, begin, "no acknowledgement within 60 s"))
    assert signals(story.fresh) == [("engine-0", "KILL")]
    story.dies("engine-0", by="SIGKILL")
    cause = story.core.ending.cause
    assert cause is not None
    assert "did not take Begin: no acknowledgement within 60 s" in cause.text


def test_a_ready_from_a_former_incarnation_is_not_believed() -> None:
    story = Story()
    story.up("trainer-0", "rollout")
    story.born("engine-0")
    story.hello("engine-0")
    story.say("engine-0", Ready(actor="engine-0"), incarnation=3)
    assert story.state("engine-0") == "greeted"


def ready(story: Story, name: str, **facts: object) -> None:
    story.born(name)
    story.hello(name)
    story.say(name, Ready(actor=name, facts=facts))


def test_actors_that_loaded_different_tokenizers_never_begin() -> None:
    """They would talk for hours in token ids that mean something else on the other side."""
    story = Story()
    ready(story, "trainer-0", tokenizer_hash="aa", vocabulary=300)
    ready(story, "rollout", tokenizer_hash="")
    ready(story, "engine-0", tokenizer_hash="bb", vocabulary=300)
    assert told(story.effects) == []
    cause = story.core.ending.cause
    assert cause is not None
    assert cause.text == (
        "actors disagree on tokenizer_hash: trainer-0: aa; engine-0: bb;"
        " they must load the same model folder"
    )


def test_actors_that_loaded_the_same_begin() -> None:
    story = Story()
    for name in ("trainer-0", "engine-0"):
        ready(story, name, tokenizer_hash="aa", vocabulary=300)
    ready(story, "rollout", prompts=12)
    assert len(told(story.effects)) == 3
