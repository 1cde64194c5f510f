"""Requests that cross: retries, two at once, attempts, dead agents, threads, drains."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.kit import (
    CALL_TEXT,
    QUESTION,
    STOP,
    Play,
    aborts,
    play,
    refused,
    renderer,
    row_of,
    text_of,
)

from milepost.actors.effects import Woken
from milepost.actors.session import work
from milepost.messages.session import AbandonTrajectory, SessionsRefused
from milepost.messages.shared import EpisodeLimits, FinishReason
from milepost.messages.supervisor import Drain, Drained, PeerRestarted

# ---- retries and requests at the same time -----------------------------------------------


def test_a_retry_samples_with_another_seed() -> None:
    """The same seed at the same position would say the same words once more."""
    game = play()
    game.open()
    game.chat([QUESTION])
    first = game.open_ask()[2].sampling.seed
    game.sample("cat")
    game.chat([QUESTION])
    second = game.open_ask()[2].sampling.seed
    game.sample("dog")
    game.chat([QUESTION])
    third = game.open_ask()[2].sampling.seed
    assert first == 7
    assert len({first, second, third}) == 3


def test_of_two_requests_at_once_the_newer_counts() -> None:
    """A client that gave up waiting asks again; the older generation is stopped and wasted.

    Its late answer must not be committed, although the number of turns is the same.
    """
    game = play()
    game.open()
    older = game.chat([QUESTION])
    late_key, late_ask, late_generate = game.open_ask()
    newer = game.chat([QUESTION])
    assert "newer request" in refused(game, older, "closed")
    assert aborts(game) == [late_generate.request_id]
    del game.asks[late_key]
    game.sample("dog")
    answer: Any = game.replies[newer]
    assert answer.message["content"] == "dog"
    game.asks = {late_key: late_ask}
    game.sample("cat", finish_reason=FinishReason.ABORT)
    assert text_of_row(game).endswith("dog" + STOP)
    assert game.desk.counters.accounts == {"stopped": 1}


def text_of_row(game: Play) -> str:
    """Text of the row of g.0."""
    return renderer().tokenizer.decode(row_of(game.core).token_ids.tolist())


def test_a_turn_whose_agent_died_is_stopped() -> None:
    """Nobody listens: its tokens would be generated for nothing."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    generate = game.open_ask()[2]
    game.tell(PeerRestarted(actor="agent-0", incarnation=2), "supervisor")
    assert "agent-0 died" in refused(game, request, "closed")
    assert aborts(game) == [generate.request_id]


def test_abandoning_stops_generation_and_forgets_the_session() -> None:
    """A verdict is fixed: not one more token for it."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    generate = game.open_ask()[2]
    game.ask(AbandonTrajectory(trajectory_id="g.0", attempt=0, reason="sibling dropped"), "rollout")
    assert refused(game, request, "closed") == "sibling dropped"
    assert aborts(game) == [generate.request_id]
    game.sample("cat", finish_reason=FinishReason.ABORT)
    refused(game, game.chat([QUESTION]), "unknown_session")
    assert game.desk.pool.loads == {"engine-0": 0}


def test_a_late_order_to_abandon_an_older_attempt_changes_nothing() -> None:
    """It may cross the opening of the next attempt on its way."""
    game = play()
    game.open(attempt=1)
    game.ask(AbandonTrajectory(trajectory_id="g.0", attempt=0, reason="old"), "rollout")
    assert game.turn([QUESTION], "cat")["content"] == "cat"


def test_a_new_attempt_takes_the_place_of_the_old_one_and_of_its_agent() -> None:
    """An agent that was given up may still chat: its words must not enter the new row."""
    game = play()
    game.open(attempt=0)
    game.turn([QUESTION], "cat")
    game.open(attempt=1)
    assert row_of(game.core).length == 0
    assert "open for attempt 1" in refused(game, game.chat([QUESTION], attempt=0), "closed")
    game.open(attempt=0)
    game.chat([QUESTION], attempt=1)
    assert len(game.asks) == 1


def test_opening_a_session_again_keeps_it() -> None:
    """The question may be asked twice when its answer was lost."""
    game = play()
    game.open()
    game.turn([QUESTION], "cat")
    game.open()
    assert len(row_of(game.core).turns) == 1


def test_more_sessions_than_allowed_are_refused_and_forgotten_ones_make_room() -> None:
    """Rows of a group that nobody came back for must not fill the actor for ever."""
    game = play(sessions_max=2)
    for name in ("g.0", "g.1"):
        game.open(name, limits=EpisodeLimits(seconds_max=60.0))
    answer: Any = game.replies[game.open("g.2")]
    assert isinstance(answer, SessionsRefused)
    assert "sessions_max is 2" in answer.reason
    game.now_s = 50.0
    game.turn([QUESTION], "cat")
    game.now_s = 61.0
    assert not isinstance(game.replies[game.open("g.2")], SessionsRefused)
    assert sorted(game.core._sessions) == ["g.0", "g.2"]


# ---- large texts -------------------------------------------------------------------------


def test_large_texts_are_worked_on_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same turn, by the other way: every text goes out as work and comes back as an event."""
    monkeypatch.setattr(work, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(work, "SPARE_BYTES_MAX", 0)
    monkeypatch.setattr(work, "INLINE_TOKENS_MAX", 0)
    game = play()
    game.open()
    request = game.chat([QUESTION, {"role": "user", "content": "not remembered"}])
    assert not game.asks
    game.work()
    game.sample(CALL_TEXT)
    assert request not in game.replies
    game.work()
    reply: Any = game.replies[request]
    assert reply.message["tool_calls"][0]["function"]["name"] == "lookup"
    sampled = row_of(game.core).turns[0].end - row_of(game.core).turns[0].prompt_end
    game.finish()
    game.work()
    assert game.take().trajectory.num_sampled_tokens == sampled


def test_the_event_loop_does_middling_texts_itself_only_when_it_has_time() -> None:
    """A thread costs two changes of context, which a lone client would wait for; with many clients
    the loop must get round to all of them, and to the question whether it is well."""
    spare = work.SpareTime()
    size = work.SPARE_BYTES_MAX
    assert not spare.take(size + 1, 0.0), "a long text lets others run meanwhile"
    num = work.SPARE_BYTES_AT_ONCE // size
    assert [spare.take(size, 0.0) for _ in range(num + 1)] == [True] * num + [False]
    assert not spare.take(size, 0.5 * size / work.SPARE_BYTES_PER_S)
    assert spare.take(size, 1.01 * size / work.SPARE_BYTES_PER_S)
    assert [spare.take(size, 1e6) for _ in range(num + 1)] == [True] * num + [False]


def test_work_for_a_turn_that_was_stopped_meanwhile_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be stopped; its result belongs to nobody."""
    monkeypatch.setattr(work, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(work, "SPARE_BYTES_MAX", 0)
    game = play()
    game.open()
    game.chat([{"role": "user", "content": "first try"}])
    game.chat([{"role": "user", "content": "second try"}])
    game.work()
    assert not game.asks
    game.work()
    assert "second try" in text_of(game.open_ask()[2].token_ids)


# ---- draining ----------------------------------------------------------------------------


def test_a_drain_lets_turns_in_flight_end_and_takes_no_new_ones() -> None:
    """Then it says that nothing is in flight; the rows stay with whoever asks for a verdict."""
    game = play()
    game.open("g.0")
    game.open("g.1")
    request = game.chat([QUESTION])
    drain = game.ask(Drain(deadline_s=10.0), "supervisor")
    refused(game, game.chat([QUESTION], "g.1"), "closed")
    assert drain not in game.replies
    game.sample("cat")
    assert request in game.replies
    assert game.replies[drain] == Drained(actor="session-0")


def test_a_drain_stops_what_takes_too_long() -> None:
    """The supervisor's deadline is not far behind."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    drain = game.ask(Drain(deadline_s=10.0), "supervisor")
    assert game.wakes["drain"] == 8.0
    game.handle(Woken("drain"))
    refused(game, request, "closed")
    assert game.replies[drain] == Drained(actor="session-0")


def test_what_the_actor_does_is_told_in_names() -> None:
    """The text of `why`: stages, and the oldest turn with its engine."""
    game = play()
    assert game.core.working_on() == "waits for turns"
    game.open()
    game.chat([QUESTION])
    told = game.core.working_on()
    assert "1 turns (1 generate); oldest is turn 1 of g.0 on engine-0" in told
    assert game.core.statistics()["turns_in_flight"] == {"generate": 1}
