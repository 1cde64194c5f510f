"""Tokens that died with a process are named to the buffer, once, whoever dies in which order."""

from __future__ import annotations

from typing import Any

from milepost.configs.actors import RestartConfig
from milepost.configs.system import TimeoutsConfig
from milepost.messages.buffer import TokensAccounted
from milepost.messages.supervisor import Heartbeat
from milepost.supervisor.book import Book
from milepost.supervisor.events import TellChild
from milepost.supervisor.losses import Losses
from milepost.supervisor.plan import ChildPlan
from milepost.supervisor.states import Child, New, Running


def child(name: str, *, runs: bool = True, **statistics: Any) -> Child:
    plan = ChildPlan(
        name=name, kind=name, index=0, order=0, significant=False, saves=False,
        restart=RestartConfig(),
    )  # fmt: skip
    made = Child(plan, Running(0.0) if runs else New(0.0, 1.0))
    made.heartbeat = Heartbeat(
        actor=name, state="", statistics=statistics, working_on="", progress=0
    )
    return made


def losses(*children: Child) -> Losses:
    book = Book({each.name: each for each in children}, TimeoutsConfig(), started_s=0.0)
    return Losses(book)


def told(made: Losses) -> list[dict[str, int]]:
    """What the buffer is told."""
    effects = made.book.take_effects()
    messages = [each.message for each in effects if isinstance(each, TellChild)]
    return [each.tokens for each in messages if isinstance(each, TokensAccounted)]


def test_what_an_engine_had_sampled_for_nobody_else_to_know_is_an_account_with_its_name() -> None:
    engine = child("engine-0", tokens_at_risk=30, accounts_untold={"unheard": 4})
    made = losses(child("buffer"), engine)
    made.died(engine)
    made.tell()
    made.tell()
    assert told(made) == [{"lost_with_engine-0": 30, "unheard": 4}]


def test_what_the_buffer_itself_held_is_told_to_its_next_incarnation() -> None:
    """And what was lost meanwhile, with it."""
    buffer = child("buffer", runs=False, tokens_at_risk=12)
    session = child("session-0", tokens_at_risk=5)
    made = losses(buffer, session)
    made.died(buffer)
    made.died(session)
    made.tell()
    assert told(made) == []
    buffer.state = Running(1.0)
    made.tell()
    assert told(made) == [{"lost_with_buffer": 12, "lost_with_session-0": 5}]


def test_a_word_that_was_not_taken_is_said_again() -> None:
    engine = child("engine-0", tokens_at_risk=30)
    made = losses(child("buffer"), engine)
    made.died(engine)
    made.tell()
    (tokens,) = told(made)
    made.not_told(TokensAccounted(tokens=tokens))
    made.tell()
    assert told(made) == [{"lost_with_engine-0": 30}]


def test_an_actor_that_holds_no_tokens_leaves_nothing_behind() -> None:
    agent = child("agent-0", episodes=3)
    made = losses(child("buffer"), agent)
    made.died(agent)
    made.tell()
    assert told(made) == []


def test_a_resume_counts_what_every_actor_held_at_the_end() -> None:
    made = losses(child("buffer"))
    made.resumed(
        {
            "session-0": {"tokens_at_risk": 8, "accounts_untold": {"stopped": 2}},
            "engine-0": {"tokens_at_risk": 1},
            "rollout": {},
        }
    )
    made.tell()
    assert told(made) == [{"lost_at_resume": 9, "stopped": 2}]


def test_who_dies_again_before_its_first_word_had_nothing_new_to_lose() -> None:
    """A process that fails at each start would else lose the same tokens every time."""
    engine = child("engine-0", tokens_at_risk=30)
    made = losses(child("buffer"), engine)
    made.died(engine)
    made.died(engine)
    made.tell()
    engine.heartbeat = Heartbeat(
        actor="engine-0", state="", statistics={"tokens_at_risk": 5}, working_on="", progress=0
    )
    made.died(engine)
    made.tell()
    assert told(made) == [{"lost_with_engine-0": 30}, {"lost_with_engine-0": 5}]
