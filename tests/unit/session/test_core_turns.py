"""A turn through the session core: what the engine is asked, what the client gets, what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.session.kit import (
    CALL_TEXT,
    QUESTION,
    STOP,
    ids,
    play,
    refused,
    renderer,
    row_of,
    tool_result,
    weights_used,
)

from milepost.actors.arrays import to_bulk
from milepost.configs.actors import TreeConfig
from milepost.messages.shared import (
    ChatMessage,
    EpisodeLimits,
    FinishReason,
    SamplingParams,
    VersionSpan,
)
from milepost.messages.trainer import VersionPublished


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
        weights=weights_used((VersionSpan(start=0, end=4, version=0),)),
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


def test_an_evaluation_asks_for_no_older_version_than_the_one_it_measures() -> None:
    """Word of that version may still be on its way here when its first turn comes."""
    game = play()
    game.open(version_min=5)
    game.tell(VersionPublished(version=4), "publisher")
    game.chat([QUESTION])
    assert game.open_ask()[2].version_min == 5


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
    assert (reply.finish_reason, reply.limit) == (FinishReason.LENGTH, name)
    more = [QUESTION, reply.message, {"role": "user", "content": "go on"}]
    refused(game, game.chat(more), "truncated")
    game.finish()
    trajectory = game.take().trajectory
    assert (trajectory.status.value, trajectory.metadata["limit"]) == ("truncated", name)
    assert trajectory.certificate.canonical_mismatch is None


@pytest.mark.parametrize("tree", [None, TreeConfig()], ids=["linear", "tree"])
@pytest.mark.parametrize(
    ("asked", "limits", "name"),
    [
        (2, EpisodeLimits(reply_tokens_max=3), ""),
        (3, EpisodeLimits(reply_tokens_max=3), "reply_tokens_max"),
        (4, EpisodeLimits(reply_tokens_max=3), "reply_tokens_max"),
        (2, EpisodeLimits(tokens_max=53), ""),
        (3, EpisodeLimits(tokens_max=53), "tokens_max"),
    ],
)
def test_a_reply_that_its_client_keeps_shorter_than_the_run_would_truncates_nothing(
    tree: TreeConfig | None, asked: int, limits: EpisodeLimits, name: str
) -> None:
    """No bound of the run was reached; it can be tried again, not continued, all the same."""
    game = play(tree=tree)
    game.open(limits=limits)
    request = game.chat([QUESTION], tokens_max=asked)
    bound = game.open_ask()[2].sampling.tokens_max
    game.sample("abcdef"[:bound], finish_reason=FinishReason.LENGTH)
    reply: Any = game.replies[request]
    assert (reply.finish_reason, reply.limit) == (FinishReason.LENGTH, name)
    more = [QUESTION, reply.message, {"role": "user", "content": "go on"}]
    refused(game, game.chat(more), "truncated")
    game.finish()
    trajectory = game.take().trajectory
    expected = "truncated" if name else "completed"
    assert (trajectory.status.value, trajectory.metadata["limit"]) == (expected, name)


def test_a_prompt_refused_for_its_length_and_then_shortened_truncates_nothing() -> None:
    """Only the newest request counts: the conversation went on to its own end."""
    game = play()
    game.open(limits=EpisodeLimits(tokens_max=120))
    reply = game.turn([QUESTION], "cat")
    long = {"role": "user", "content": "sure? " * 40}
    refused(game, game.chat([QUESTION, reply, long]), "limit")
    game.turn([QUESTION, reply, {"role": "user", "content": "sure?"}], "cat")
    game.finish()
    trajectory = game.take().trajectory
    assert (trajectory.status.value, trajectory.metadata["limit"]) == ("completed", "")


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


@pytest.mark.parametrize("tree", [None, TreeConfig()])
def test_no_two_calls_of_a_session_share_an_id(tree: TreeConfig | None) -> None:
    """A result names its call by id, and so do clients that repeat a call in other words."""

    def played() -> list[str]:
        game = play(tree=tree)
        game.open()
        # A demonstration, or a conversation that began in another session.
        quoted = reply_of("call_3_0", "call_x_0", "call_1_7")
        said: list[ChatMessage] = [QUESTION, quoted, tool_result("dog", "call_3_0")]
        seen = [call["id"] for call in quoted["tool_calls"]]
        for _ in range(2):
            reply = game.turn([*said, {"role": "user", "content": "again"}], CALL_TEXT * 2)
            seen += [call["id"] for call in reply["tool_calls"]]
        said += [{"role": "user", "content": "again"}, reply, tool_result("cat", seen[-1])]
        more = [reply_of("call_9_0"), {"role": "user", "content": "and now"}]
        seen += ["call_9_0", game.turn([*said, *more], CALL_TEXT)["tool_calls"][0]["id"]]
        if tree:
            fresh = game.turn([{"role": "user", "content": "sub-agent"}], CALL_TEXT)
            seen.append(fresh["tool_calls"][0]["id"])
        return seen

    seen = played()
    assert len(set(seen)) == len(seen)
    assert played() == seen, "the same session has the same ids"


def reply_of(*call_ids: str) -> ChatMessage:
    """A message that makes calls of these ids."""
    function = {"name": "lookup", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in call_ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}
