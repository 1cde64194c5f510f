"""Replies whose stop token a template takes off, or replaces, once a message follows.

The model sampled it all the same: whoever tries the next turn again stands on it, and a row that
ends there has it. Families glm and gpt_oss are so.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load
from unit.session.family_kit import family_renderer
from unit.session.kit import Play, ids, play, weights_used
from unit.session.test_row import NEWLINE, STOP, piece, reply

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Answered
from milepost.actors.session.families import Seam
from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.http.branches import copies_of
from milepost.actors.session.http.samples import encode_samples
from milepost.actors.session.leaves import LeafRules
from milepost.actors.session.row import TokenRow
from milepost.configs.actors import TreeConfig
from milepost.messages.engine import Generated
from milepost.messages.session import AbandonTrajectory
from milepost.messages.shared import FinishReason, VersionSpan

ASKED: dict[str, Any] = {"role": "user", "content": "hi"}
MORE: dict[str, Any] = {"role": "user", "content": "go on"}
DROPPED = [(name, stop) for name, declared in DECLARATIONS.items() for stop in declared.dropped]
SAID = {"gpt_oss": "<|channel|>final<|message|>Hello", "glm": "hm</think>Hello"}
each_end = pytest.mark.parametrize(("family", "stop"), DROPPED)
each_history = pytest.mark.parametrize("tree", [None, TreeConfig()], ids=["linear", "tree"])


def test_a_reply_that_is_its_stop_token_alone_may_lose_it() -> None:
    """A model may answer nothing; its turn stays, without a token while another follows."""
    row = TokenRow()
    spans = (VersionSpan(start=0, end=1, version=1),)
    row.commit(0, Seam(), piece(1), replace(reply(STOP), weights=weights_used(spans)))
    whole = row.turns[0]
    row.commit(1, Seam(drop=1), piece(2), reply(20, STOP))
    row.validate()
    assert row.token_ids.tolist() == [1, 2, 20, STOP]
    assert (row.turns[0].prompt_end, row.turns[0].end, row.turns[0].weights) == (1, 1, ())
    row.cut_for_good(1)
    row.validate()
    assert row.token_ids.tolist() == [1, STOP]
    assert row.turns == [whole]


def test_a_row_cut_after_a_trimmed_reply_ends_with_its_stop_token() -> None:
    """It teaches the model to stop: a last reply without it would be one that never ended."""
    row = TokenRow()
    said = reply(10, 11, STOP, versions=((1, 1), (2, 2)))
    row.commit(0, Seam(), piece(1, 2), said)
    whole, spans, logprobs = row.turns[0], list(row.spans), row.logprobs.tolist()
    prompt = row.prompt(1, Seam(drop=1, insert=(NEWLINE,)), piece(3))
    for sampled in (20, 21):
        row.commit(1, Seam(drop=1, insert=(NEWLINE,)), piece(3), reply(sampled, STOP))
        row.validate()
        assert row.num_trimmed == 1
    given = row.prompt(2, Seam(), piece(4, 5, 6))
    row.commit(2, Seam(), piece(4, 5, 6), reply(30, STOP))
    told = given.tolist()
    twin = row.copy()
    for each in (row, twin):
        each.cut_for_good(1)
        each.validate()
        assert each.token_ids.tolist() == [1, 2, 10, 11, STOP]
        assert (each.turns, each.spans, each.num_trimmed) == ([whole], spans, 0)
        assert each.logprobs.tolist() == logprobs
    assert prompt.tolist() == [1, 2, 10, 11, NEWLINE, 3]
    assert given.tolist() == told, "a prompt that was given out is never written again"


def test_a_turn_tried_again_stands_on_the_same_reply() -> None:
    """Its first try trimmed the reply before: whoever asks again sees the token, and trims it."""
    row = TokenRow()
    row.commit(0, Seam(), piece(1, 2), reply(10, STOP))
    seam = Seam(drop=1, insert=(NEWLINE,))
    first = row.prompt(1, seam, piece(3)).tolist()
    row.commit(1, seam, piece(3), reply(20, STOP))
    assert (row.last_token(1), row.base_length(1)) == (STOP, 4)
    assert row.prompt(1, seam, piece(3)).tolist() == first == [1, 2, 10, NEWLINE, 3]
    with pytest.raises(AssertionError, match="0 tokens of a reply go, 1 went before"):
        row.prompt(1, Seam(), piece(3))


# ---- through the core --------------------------------------------------------------------


def begun(family: str, tree: TreeConfig | None) -> Play:
    game = play(of=family_renderer(family), tree=tree)
    game.open()
    return game


def ask(game: Play, messages: list[Any]) -> tuple[Any, str]:
    """The request, and the prompt that the engine got for it."""
    request = game.chat(messages, tools=[])
    return request, game.desk.renderer.tokenizer.decode(ids(game.open_ask()[2].token_ids))


def sample(game: Play, text: str) -> None:
    """The engine answers this."""
    key, asked, generate = game.open_ask()
    del game.asks[key]
    token_ids = game.desk.renderer.tokenizer.encode(text)
    spans = (VersionSpan(start=0, end=len(token_ids), version=3),)
    generated = Generated(
        request_id=generate.request_id,
        token_ids=to_bulk(token_ids),
        logprobs=to_bulk(np.full(len(token_ids), -0.5, dtype=np.float32)),
        spans=spans,
        weights=weights_used(spans),
        finish_reason=FinishReason.STOP,
        cached_tokens=0,
    )
    game.handle(Answered(key, asked.to, generated))


def taken(game: Play, **verdict: Any) -> Any:
    game.finish(**verdict)
    while game.works:
        game.work()
    return game.take().trajectory


def turn(game: Play, messages: list[Any], text: str) -> list[Any]:
    """One turn; the conversation after it."""
    request, _ = ask(game, messages)
    sample(game, text)
    answer: Any = game.replies[request]
    return [*messages, answer.message, MORE]


@each_history
@each_end
def test_a_reply_of_its_stop_token_alone_is_a_turn_like_any_other(
    family: str, stop: str, tree: TreeConfig | None
) -> None:
    """A model says nothing now and then; every conversation of the actor would go down with it."""
    game = begun(family, tree)
    history = turn(game, [ASKED], stop)
    assert history[1]["content"] == ""
    turn(game, history, SAID[family] + stop)
    copies = copies_of(game.core._sessions["g.0"].record.later()())
    samples = load(
        encode_samples(copies, game.desk.renderer, rules=LeafRules(), length_max=None, metadata={})
    )
    meta = msgspec.json.decode(samples["_samples_meta"].tobytes())
    assert meta["samples"][0]["weight_versions"] == ["3"], "of the replies that have tokens"
    first, second = taken(game).turns
    assert first.end == first.prompt_end < second.prompt_end < second.end


@each_history
@each_end
def test_a_turn_tried_again_gets_the_prompt_of_its_first_try(
    family: str, stop: str, tree: TreeConfig | None
) -> None:
    """What closes the reply before was written once and then left out: no template writes that."""
    game = begun(family, tree)
    said = SAID[family] + stop
    history = turn(game, [ASKED], said)
    prompts = []
    for _ in range(3):
        prompts.append(ask(game, history)[1])
        sample(game, said)
    assert prompts[1:] == prompts[:1] * 2


@each_history
@each_end
def test_a_row_that_its_verdict_ends_early_has_the_stop_token_of_its_last_reply(
    family: str, stop: str, tree: TreeConfig | None
) -> None:
    """It says that the reply ended by itself, and only its token can teach that."""
    game = begun(family, tree)
    said = SAID[family] + stop
    turn(game, turn(game, [ASKED], said), said)
    row = taken(game, generation=1)
    tokenizer = game.desk.renderer.tokenizer
    assert tokenizer.decode(ids(row.token_ids)).endswith(said)
    assert row.num_sampled_tokens == row.turns[0].end - row.turns[0].prompt_end
    assert row.num_sampled_tokens == len(tokenizer.encode(said))
    assert row.certificate.canonical_mismatch is None


@each_history
@each_end
@pytest.mark.parametrize("ending", ["delivered", "abandoned"])
def test_a_trimmed_token_is_in_one_account(
    family: str, stop: str, tree: TreeConfig | None, ending: str
) -> None:
    """It was sampled and nobody trains it, whatever becomes of its row."""
    game = begun(family, tree)
    said = SAID[family] + stop
    turn(game, turn(game, [ASKED], said), said)
    sampled = game.desk.counters.tokens_sampled
    if ending == "delivered":
        assert taken(game).num_sampled_tokens == sampled - 1
        assert game.desk.counters.accounts == {"not_trained": 1}
    else:
        game.ask(AbandonTrajectory(trajectory_id="g.0", attempt=0, reason="no"), "rollout")
        assert game.desk.counters.accounts == {"abandoned": sampled}
