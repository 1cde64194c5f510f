"""New weights in the middle of everything: no token of one version on keys of another."""

from __future__ import annotations

import numpy as np
import pytest
from unit.engine.kit import (
    drain,
    generate,
    order,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    step,
    tiny_shape,
)
from unit.engine.naive import NaiveRow, distribution

from milepost.actors.engine.embedded.rows import NOT_REUSABLE
from milepost.actors.engine.embedded.sequences import Reply, Sequence
from milepost.actors.engine.interface import Finished, GenerateOrder, ScoreFinished, ScoreOrder
from milepost.messages.engine import PauseMode
from milepost.messages.shared import VersionSpan

MODES = pytest.mark.parametrize("mode", list(PauseMode))


def replayed(asked: GenerateOrder, reply: Finished, mode: PauseMode) -> list[float]:
    """Log-probs of the reply by the naive decoder, with weights changed where its spans say."""
    shape = tiny_shape()
    versions = [span.version for span in reply.spans for _ in range(span.end - span.start)]
    weights = {version: random_weights(shape, version) for version in set(versions)}
    row, fed = NaiveRow(shape), [int(token) for token in asked.token_ids]
    for token in fed:
        logits = row.feed(token, weights[versions[0]])
    expected = []
    for index, token in enumerate(reply.token_ids.tolist()):
        if index and versions[index] != versions[index - 1] and mode is PauseMode.RETRACT:
            row = NaiveRow(shape)
            for old in fed[:-1]:
                row.feed(old, weights[versions[index]])
        if index:
            logits = row.feed(fed[-1], weights[versions[index]])
        expected.append(float(np.log(distribution(logits, asked.sampling)[token])))
        fed.append(token)
    return expected


@MODES
def test_a_reply_lives_through_a_switch_and_its_spans_show_it(mode: PauseMode) -> None:
    """Retract recomputes the prefix under the new version; in place goes on with the old keys."""
    engine = serving(seed=0)
    asked = order("a", random_row(0, 7), tokens_max=15, seed=3)
    engine.generate(asked)
    for _ in range(6):
        step(engine)
    switched = publish(engine, random_weights(tiny_shape(), 1), 1, mode)
    assert switched.num_in_flight == 1
    assert switched.pause_s >= 0
    reply = drain(engine)["a"]
    assert isinstance(reply, Finished)
    assert reply.spans == (
        VersionSpan(start=0, end=6, version=0),
        VersionSpan(start=6, end=15, version=1),
    )
    assert reply.kv_versions == ((0, 1) if mode is PauseMode.RETRACT else (0, 0))
    np.testing.assert_allclose(reply.logprobs, replayed(asked, reply, mode), atol=2e-5)


@MODES
def test_two_switches_before_the_next_token_leave_one_span(mode: PauseMode) -> None:
    """A version that sampled nothing must not appear in anybody's spans."""
    engine = serving(seed=0)
    engine.generate(order("a", random_row(0, 7), tokens_max=5))
    engine.generate(order("waits", random_row(1, 7), tokens_max=3))
    step(engine)
    for version in (1, 2):
        publish(engine, random_weights(tiny_shape(), version), version, mode)
    replies = drain(engine)
    reply, waited = replies["a"], replies["waits"]
    assert isinstance(reply, Finished)
    assert isinstance(waited, Finished)
    assert [span.version for span in reply.spans] == [0, 2]
    assert reply.kv_versions == ((0, 2) if mode is PauseMode.RETRACT else (0, 0))
    np.testing.assert_allclose(
        reply.logprobs, replayed(order("a", random_row(0, 7)), reply, mode), atol=2e-5
    )


@MODES
def test_a_prefix_of_an_older_version_is_never_reused(mode: PauseMode) -> None:
    """Stale keys describe no policy: a session that goes on after a switch starts cold."""
    engine = serving(seed=0)
    prompt = random_row(0, 30)
    first = generate(engine, order("t0", prompt, "s", tokens_max=3, seed=1))["t0"]
    generate(engine, order("other", prompt, "t", tokens_max=3, seed=2))
    score(engine, prompt, use_cache=True)
    publish(engine, random_weights(tiny_shape(), 1), 1, mode)
    history = np.concatenate((prompt, first.token_ids, random_row(3, 3)))
    asked = order("t1", history, "s", tokens_max=6, seed=4)
    reply = generate(engine, asked)["t1"]
    assert reply.cached_tokens == 0
    np.testing.assert_allclose(reply.logprobs, replayed(asked, reply, mode), atol=2e-5)


def test_a_row_of_two_versions_is_given_up_when_its_reply_ends() -> None:
    """In place, a reply goes on over old keys: nobody else may ever read them."""
    engine = serving(seed=0)
    prompt = random_row(0, 20)
    engine.generate(order("a", prompt, "s", tokens_max=8, seed=1))
    step(engine)
    step(engine)
    row = engine._rows.of_session["s"]
    publish(engine, random_weights(tiny_shape(), 1), 1, PauseMode.IN_PLACE)
    assert engine._rows.serial[row] == NOT_REUSABLE
    # The same prompt, while the row of mixed versions is decoding, and after it has ended.
    beside = order("beside", prompt, tokens_max=12, seed=2)
    engine.generate(beside)
    replies = drain(engine)
    reply = replies["a"]
    assert isinstance(reply, Finished)
    after = order("after", np.concatenate((prompt, reply.token_ids)), "s", tokens_max=3, seed=3)
    later = generate(engine, after)["after"]
    first = replies["beside"]
    assert isinstance(first, Finished)
    assert first.cached_tokens == 0
    # What it can reuse is what `beside` computed under version 1: the prompt, and no more.
    assert later.cached_tokens <= 20
    for asked, found in ((beside, first), (after, later)):
        expected = replayed(asked, found, PauseMode.IN_PLACE)
        np.testing.assert_allclose(found.logprobs, expected, atol=2e-5)


def test_reuse_of_a_stale_row_is_caught_by_an_assertion() -> None:
    """The rule is checked where it matters, not only kept by the search."""
    engine = serving(seed=0)
    generate(engine, order("t0", random_row(0, 20), "s", tokens_max=3))
    row = engine._rows.of_session["s"]
    publish(engine, random_weights(tiny_shape(), 1), 1)
    with pytest.raises(AssertionError, match="holds keys of weights -1, serving 2"):
        engine._rows.occupy(row, Sequence("s", random_row(0, 20)), 10, 2)


@MODES
def test_rows_in_prefill_start_anew_under_the_new_version(mode: PauseMode) -> None:
    """A reply without a token yet is a new request: it may not mix versions in either mode."""
    engine = serving(seed=0, prefill_tokens_max=8)
    asked = order("a", random_row(0, 40), tokens_max=5, seed=6)
    engine.generate(asked)
    step(engine)
    step(engine)
    publish(engine, random_weights(tiny_shape(), 1), 1, mode)
    reply = drain(engine)["a"]
    assert isinstance(reply, Finished)
    assert reply.spans == (VersionSpan(start=0, end=5, version=1),)
    np.testing.assert_allclose(reply.logprobs, replayed(asked, reply, mode), atol=2e-5)


@MODES
def test_scores_are_of_one_version(mode: PauseMode) -> None:
    """Rows scored before a switch are scored again: one answer, one version."""
    engine = serving(seed=0, slots=4, running_max=2, prefill_tokens_max=20)
    rows = tuple(random_row(n, 20) for n in range(5))
    engine.score(ScoreOrder("s", rows, 1.0, use_cache=True))
    step(engine)
    step(engine)
    publish(engine, random_weights(tiny_shape(), 1), 1, mode)
    scored = drain(engine)["s"]
    assert isinstance(scored, ScoreFinished)
    assert scored.version == 1
    fresh = serving(seed=1)
    for row, logprobs in zip(rows, scored.logprobs, strict=True):
        np.testing.assert_allclose(logprobs, score(fresh, row).logprobs[0], atol=1e-5)


def test_retracted_replies_go_on_in_their_order_and_with_their_seeds() -> None:
    """Retraction may not change who is served first, nor which random numbers are drawn."""
    engine = serving(seed=0, running_max=3, slots=4)
    asked = [order(f"r{n}", random_row(n, 6), tokens_max=9, seed=n) for n in range(5)]
    for each in asked:
        engine.generate(each)
    for _ in range(4):
        step(engine)
    publish(engine, random_weights(tiny_shape(), 0), 1)
    waiting = [s.order.key for s in engine._scheduler.waiting if isinstance(s, Reply)]
    assert waiting == ["r0", "r1", "r2", "r3", "r4"]
    replies = drain(engine)
    unbroken = generate(serving(seed=0), *asked)
    for key, reply in replies.items():
        assert isinstance(reply, Finished)
        # The same weights under another number: every token must be the same.
        assert reply.token_ids.tolist() == unbroken[key].token_ids.tolist()


def test_going_back_to_an_older_version_does_not_revive_its_keys() -> None:
    """A failed publication brings engines back to a number they served before."""
    engine = serving(seed=0)
    prompt = random_row(0, 25)
    generate(engine, order("t0", prompt, "s", tokens_max=3))
    publish(engine, random_weights(tiny_shape(), 1), 1)
    publish(engine, random_weights(tiny_shape(), 0), 0)
    asked = order("t1", prompt, "s", tokens_max=4, seed=1)
    reply = generate(engine, asked)["t1"]
    assert reply.cached_tokens == 0
    np.testing.assert_allclose(reply.logprobs, replayed(asked, reply, PauseMode.RETRACT), atol=2e-5)
