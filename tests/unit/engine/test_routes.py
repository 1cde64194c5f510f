"""Routes: the experts that each token went through, beside its keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.engine.kit import (
    drain,
    generate,
    order,
    publish,
    random_row,
    random_weights,
    serving,
    step,
    tiny_config,
)
from unit.engine.naive import NaiveRow

from milepost.actors.engine.embedded.backend import EmbeddedBackend
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.shape import UnsupportedModelError, shape_from_config
from milepost.actors.engine.interface import Finished
from milepost.actors.engine.receiving import Receiver
from milepost.configs.actors import EngineConfig
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason

SHAPE = shape_from_config(
    tiny_config(
        model_type="qwen3_moe",
        num_hidden_layers=3,
        mlp_only_layers=[1],
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        norm_topk_prob=True,
    )
)
"""Two mixture layers with a dense one between them."""


def keeping(**changes: Any) -> EmbeddedEngine:
    return serving(SHAPE, keeps_routes=True, **changes)


def naive_routes(tokens: np.ndarray, version: int = 0) -> np.ndarray:
    """[tokens, mixture layers, experts per token], sorted, by the slow decoder."""
    row, weights = NaiveRow(SHAPE), random_weights(SHAPE, version)
    for token in tokens.tolist():
        row.feed(token, weights)
    return np.array(row.routes)


def told(reply: Finished) -> np.ndarray:
    assert reply.routes is not None
    assert reply.routes.dtype == np.uint8
    return np.sort(reply.routes, -1)


def whole(asked: Any, reply: Finished) -> np.ndarray:
    return np.concatenate((asked.token_ids, reply.token_ids))


@pytest.mark.parametrize("chunk", [64, 5])
def test_every_token_but_the_last_has_the_routes_of_the_slow_decoder(chunk: int) -> None:
    """Prompt and reply, in one pass or in chunks, beside rows that decode meanwhile."""
    engine = keeping(prefill_tokens_max=chunk)
    asked = [
        order(f"r{n}", random_row(n, 3 + 4 * n), routes_start=0, tokens_max=6 + n, seed=n)
        for n in range(5)
    ]
    replies = generate(engine, *asked)
    for each in asked:
        row = whole(each, replies[each.key])
        np.testing.assert_array_equal(told(replies[each.key]), naive_routes(row)[:-1])


def test_a_later_turn_tells_what_the_earlier_could_not() -> None:
    """The cached prefix keeps its routes; a turn's own begin at the last token before it."""
    engine = keeping()
    first = order("1", random_row(1, 9), "s", routes_start=0, tokens_max=5)
    row = whole(first, generate(engine, first)["1"])
    prompt = np.concatenate((row, random_row(2, 4)))
    second = order("2", prompt, "s", routes_start=len(row) - 1, tokens_max=5)
    again = order("3", prompt, "s", routes_start=0, tokens_max=5)
    reply, replayed = (generate(engine, each)[each.key] for each in (second, again))
    assert reply.cached_tokens == len(row) - 1
    assert replayed.cached_tokens == len(prompt) - 1
    expected = naive_routes(whole(second, reply))
    np.testing.assert_array_equal(told(reply), expected[len(row) - 1 : -1])
    np.testing.assert_array_equal(told(replayed), naive_routes(whole(again, replayed))[:-1])


def test_a_prefix_that_another_session_computed_comes_with_its_routes() -> None:
    """Members of a group share their prompt: its keys are copied, and so are its routes."""
    engine = keeping()
    prompt = random_row(4, 20)
    generate(engine, order("a", prompt, tokens_max=1))
    asked = order("b", prompt, routes_start=0, tokens_max=4)
    reply = generate(engine, asked)["b"]
    assert reply.cached_tokens == 19
    np.testing.assert_array_equal(told(reply), naive_routes(whole(asked, reply))[:-1])


@pytest.mark.parametrize("mode", list(PauseMode))
@pytest.mark.parametrize("start", [0, 6])
def test_new_weights_never_replace_routes_that_were_sampled_through(
    mode: PauseMode, start: int
) -> None:
    """A retracted reply is computed anew; the routes of what it had sampled stay the old ones.

    Twice, the second time while its prefill has only begun.
    """
    engine = keeping(prefill_tokens_max=4)
    asked = order("a", random_row(0, 7), routes_start=start, tokens_max=15, seed=3)
    engine.generate(asked)
    for _ in range(6):
        step(engine)
    publish(engine, random_weights(SHAPE, 1), 1, mode)
    step(engine)
    publish(engine, random_weights(SHAPE, 2), 2, mode)
    outcome = drain(engine)["a"]
    assert isinstance(outcome, Finished)
    row, expected = whole(asked, outcome), []
    fed = NaiveRow(SHAPE)
    versions = [s.version for s in outcome.spans for _ in range(s.start, s.end)]
    assert len(set(versions)) > 1
    for place, token in enumerate(row[:-1].tolist()):
        version = versions[max(0, place + 1 - len(asked.token_ids))]
        if mode is PauseMode.RETRACT:
            expected.append(naive_routes(row[: place + 1], version)[-1])
        else:
            fed.feed(token, random_weights(SHAPE, version))
            expected.append(np.array(fed.routes[-1]))
    np.testing.assert_array_equal(told(outcome), np.array(expected)[start:])


def test_a_reply_that_its_first_token_ends_has_the_routes_of_its_prompt() -> None:
    engine = keeping()
    asked = order("a", random_row(5, 6), routes_start=2, tokens_max=1)
    reply = generate(engine, asked)["a"]
    np.testing.assert_array_equal(told(reply), naive_routes(asked.token_ids)[2:])


def test_nobody_gets_routes_unasked_nor_of_an_aborted_reply() -> None:
    engine = keeping()
    assert generate(engine, order("a", random_row(1, 4), tokens_max=3))["a"].routes is None
    engine.generate(order("b", random_row(1, 4), routes_start=0, tokens_max=9))
    step(engine)
    (aborted,) = engine.abort(("b",), ())
    assert isinstance(aborted, Finished)
    assert aborted.finish_reason is FinishReason.ABORT
    assert aborted.routes is None


def test_an_engine_that_keeps_no_routes_has_no_room_for_them() -> None:
    """Off costs nothing: no memory, and the decoder is not even asked."""
    assert serving(SHAPE)._cache.routes is None


def test_many_experts_need_two_bytes() -> None:
    config = tiny_config(
        model_type="qwen3_moe",
        num_experts=300,
        num_experts_per_tok=3,
        moe_intermediate_size=4,
        num_hidden_layers=1,
    )
    shape = shape_from_config(config)
    assert shape.routes is not None
    assert (shape.routes.dtype, shape.routes.token_bytes) == ("int16", 6)
    reply = generate(
        serving(shape, keeps_routes=True), order("a", random_row(1, 4), routes_start=0)
    )["a"]
    assert reply.routes is not None
    assert reply.routes.dtype == np.int16


def test_routes_of_a_dense_model_are_refused_at_the_start(tmp_path: Path) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    receiver = Receiver(tmp_path / "local", baseline=tmp_path, device="cpu")
    with pytest.raises(UnsupportedModelError, match=r"set algorithm\.replay_routes = false"):
        EmbeddedBackend(
            tmp_path,
            EngineConfig(),
            dtype=str(torch.float32).removeprefix("torch."),
            context_tokens=64,
            receiver=receiver,
            keeps_routes=True,
        )
