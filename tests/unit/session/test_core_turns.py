"""A turn through the session core: what the engine is asked, what the client gets, what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.session.kit import (
    CALL_TEXT,
    QUESTION,
    STOP,
    Play,
    ids,
    play,
    renderer,
    text_of,
    tool_result,
)

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Request, Woken
from milepost.actors.session import work
from milepost.actors.session.core import SessionCore
from milepost.messages.engine import AbortRequests
from milepost.messages.session import AbandonTrajectory, ChatRefused, SessionsRefused
from milepost.messages.shared import EpisodeLimits, FinishReason, SamplingParams, VersionSpan
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished


def aborts(game: Play) -> list[str]:
    """Requests that engines were told to stop."""
    return [
        name
        for tell in game.told
        if isinstance(tell.message, AbortRequests)
        for name in tell.message.request_ids
    ]


def row_of(core: SessionCore, trajectory_id: str = "g.0") -> Any:
    """The row of an open session."""
    return core._sessions[trajectory_id].row


def refused(game: Play, request: Request, kind: str) -> str:
    """The reason of a refusal of this kind."""
    answer = game.replies[request]
    assert isinstance(answer, ChatRefused), answer
    assert answer.kind == kind, answer
    return answer.reason


def test_two_turns_extend_one_row_and_sampled_tokens_are_never_rendered_again() -> None:
    """The second prompt is the first prompt, the sampled ids, a newline, and the new text."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    first = game.open_ask()[2]
    sampled = game.sample(CALL_TEXT)
    reply: Any = game.replies[request]
    assert reply.finish_reason is FinishReason.STOP
    assert reply.versions == (3,)
    assert reply.message["tool_calls"][0]["function"] == {
        "name": "lookup",
        "arguments": '{"name": "kai", "field": "pet"}',
    }
    call_id = reply.message["tool_calls"][0]["id"]
    game.chat([QUESTION, reply.message, tool_result("cat", call_id)])
    second = game.open_ask()[2]
    before = ids(first.token_ids) + ids(sampled.token_ids)
    assert ids(second.token_ids)[: len(before)] == before
    new = renderer().tokenizer.decode(ids(second.token_ids)[len(before) :])
    assert new == (
        "\n<|im_start|>user\n<tool_response>\ncat\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_reply_sampled_in_an_unusual_split_stays_as_it_was_sampled() -> None:
    """Decoding and encoding again would change it: `k`, `ai` would become `kai`."""
    game = play()
    game.open()
    tokenizer = renderer().tokenizer
    game.chat([QUESTION])
    generate = game.open_ask()[2]
    pieces = [tokenizer.token_id(character) for character in "kai"]
    token_ids = np.array([*pieces, tokenizer.token_id(STOP)], dtype=np.int32)
    game.sample(
        "",
        token_ids=to_bulk(token_ids),
        logprobs=to_bulk(np.full(4, -1.0, dtype=np.float32)),
        spans=(VersionSpan(start=0, end=4, version=0),),
    )
    assert row_of(game.core).token_ids.tolist() == ids(generate.token_ids) + token_ids.tolist()
    message = {"role": "assistant", "content": "kai"}
    game.chat([QUESTION, message, {"role": "user", "content": "sure?"}])
    asked = ids(game.open_ask()[2].token_ids)
    assert asked[: len(row_of(game.core).token_ids)] == row_of(game.core).token_ids.tolist()


def test_the_engine_is_asked_with_the_session_s_own_settings() -> None:
    """Stop tokens of the family are added; the newest published version is the oldest allowed."""
    game = play()
    game.open(sampling=SamplingParams(temperature=0.7, tokens_max=64, seed=7, stop_token_ids=(5,)))
    game.tell(VersionPublished(version=4), "publisher")
    game.tell(VersionPublished(version=3), "publisher")
    game.chat([QUESTION], tokens_max=9)
    _, ask, generate = game.open_ask()
    assert ask.to == "engine-0"
    assert (generate.session_id, generate.version_min) == ("g.0", 4)
    sampling = generate.sampling
    assert (sampling.temperature, sampling.seed, sampling.tokens_max) == (0.7, 7, 9)
    assert set(sampling.stop_token_ids) == {5, *renderer().family.stop_token_ids}
    assert ask.deadline_s == EpisodeLimits().seconds_max


# ---- refused: nothing changes ------------------------------------------------------------


def test_a_refused_request_changes_nothing() -> None:
    """The same turn, asked rightly, goes on as if nothing had happened."""
    game = play()
    game.open()
    reply = game.turn([QUESTION], "cat")
    row = row_of(game.core).token_ids.tolist()
    history = [QUESTION, reply, {"role": "user", "content": "more"}]
    for messages, kind in (
        ([{"role": "user", "content": "other"}, *history[1:]], "not_append_only"),
        ([*history, {"role": "robot"}], "bad_request"),
        ([*history[:2], {"role": "user", "content": "x", "input_ids": [1]}], "bad_request"),
    ):
        refused(game, game.chat(messages), kind)
        assert row_of(game.core).token_ids.tolist() == row
        assert not game.asks
    refused(game, game.chat(history, tools=[]), "not_append_only")
    game.turn(history, "dog")
    assert row_of(game.core).token_ids[: len(row)].tolist() == row


def test_an_unknown_session_is_refused_by_name() -> None:
    """A session actor that restarted has lost it, and says so."""
    game = play()
    assert "session-0 has no session g.9" in refused(
        game, game.chat([QUESTION], "g.9"), "unknown_session"
    )


def test_a_message_the_template_cannot_render_is_the_client_s_fault() -> None:
    """Without a text, this tool message raises inside the template."""
    game = play()
    game.open()
    message = game.turn([QUESTION], CALL_TEXT)
    bad = {"role": "tool", "tool_call_id": "call_0_0", "content": None}
    assert "chat template raised" in refused(
        game, game.chat([QUESTION, message, bad]), "bad_request"
    )
    assert len(row_of(game.core).turns) == 1


# ---- limits ------------------------------------------------------------------------------


def test_one_turn_more_than_allowed_is_a_limit() -> None:
    """And the trajectory is truncated, whatever the agent says about it."""
    game = play()
    game.open(limits=EpisodeLimits(turns_max=1))
    reply = game.turn([QUESTION], "cat")
    request = game.chat([QUESTION, reply, {"role": "user", "content": "more"}])
    assert "turns_max is 1" in refused(game, request, "limit")
    answer: Any = game.replies[request]
    assert answer.limit == "turns_max"
    game.finish()
    trajectory = game.take().trajectory
    assert (trajectory.status.value, trajectory.metadata["limit"]) == ("truncated", "turns_max")


@pytest.mark.parametrize(
    ("limits", "context", "name"),
    [
        (EpisodeLimits(tokens_max=20), 4096, "tokens_max"),
        (EpisodeLimits(tokens_max=4096), 20, "context_tokens_max"),
    ],
)
def test_a_prompt_without_room_for_a_reply_is_a_limit(
    limits: EpisodeLimits, context: int, name: str
) -> None:
    """The bound that counts is named: the episode's, or the model's."""
    game = play(context_tokens_max=context)
    game.open(limits=limits)
    request = game.chat([QUESTION])
    assert f"{name} is 20: no room" in refused(game, request, "limit")
    assert not game.asks


@pytest.mark.parametrize(
    ("fields", "bound", "name"),
    [
        ({"limits": EpisodeLimits(reply_tokens_max=5)}, 5, "reply_tokens_max"),
        ({"sampling": SamplingParams(tokens_max=6)}, 6, "reply_tokens_max"),
        ({"limits": EpisodeLimits(tokens_max=53)}, 3, "tokens_max"),
    ],
)
def test_a_reply_is_cut_off_at_the_tightest_bound(fields: Any, bound: int, name: str) -> None:
    """Cut off, it can be tried again but not continued, and the trajectory is truncated."""
    game = play()
    game.open(**fields)
    request = game.chat([QUESTION])
    generate = game.open_ask()[2]
    assert generate.sampling.tokens_max == bound, len(ids(generate.token_ids))
    game.sample("abcdef"[:bound], finish_reason=FinishReason.LENGTH)
    reply: Any = game.replies[request]
    assert reply.finish_reason is FinishReason.LENGTH
    more = [QUESTION, reply.message, {"role": "user", "content": "go on"}]
    refused(game, game.chat(more), "truncated")
    game.finish()
    trajectory = game.take().trajectory
    assert (trajectory.status.value, trajectory.metadata["limit"]) == ("truncated", name)
    assert trajectory.certificate.canonical_mismatch is None


def test_trying_a_cut_off_turn_again_lifts_the_verdict() -> None:
    """The new reply ends by itself: the trajectory is complete again."""
    game = play()
    game.open()
    game.turn([QUESTION], "ca", finish_reason=FinishReason.LENGTH)
    game.turn([QUESTION], "cat")
    game.finish()
    trajectory = game.take().trajectory
    assert (trajectory.status.value, trajectory.metadata["limit"]) == ("completed", "")
    assert len(trajectory.turns) == 1


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
    assert game.desk.counters.tokens_wasted == 1


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


def test_work_for_a_turn_that_was_stopped_meanwhile_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread cannot be stopped; its result belongs to nobody."""
    monkeypatch.setattr(work, "INLINE_BYTES_MAX", 0)
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
