"""What the embedded engine answers: sampled replies, prefixes, scores, limits, aborts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.engine.kit import (
    VOCABULARY,
    drain,
    generate,
    make_engine,
    order,
    random_row,
    random_weights,
    score,
    serving,
    step,
    tiny_shape,
)
from unit.engine.naive import NaiveRow, distribution

from milepost.actors.engine.embedded.shape import ModelShape
from milepost.actors.engine.interface import Finished, GenerateOrder, Outcome, Rejected
from milepost.messages.shared import FinishReason, VersionSpan

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}


def expected_logprobs(
    shape: ModelShape, seed: int, order_: GenerateOrder, reply: list[int]
) -> list[float]:
    """Log-probs of a reply's tokens by the naive decoder."""
    weights = random_weights(shape, seed)
    row = NaiveRow(shape)
    for token in order_.token_ids:
        logits = row.feed(int(token), weights)
    found = []
    for token in reply:
        found.append(float(np.log(distribution(logits, order_.sampling)[token])))
        logits = row.feed(token, weights)
    return found


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": False}, {"model_type": "llama"}, MOE, {"num_key_value_heads": 4}],
    ids=["qwen3", "untied", "llama", "moe", "no_gqa"],
)
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"top_k": 5},
        {"top_p": 0.8, "temperature": 1.3},
        {"min_p": 0.2},
        {"top_k": 9, "top_p": 0.7, "min_p": 0.05, "temperature": 0.9},
    ],
    ids=str,
)
def test_log_probs_are_of_the_distribution_sampled_from(
    changes: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """Importance ratios divide by these: of another distribution they train another objective."""
    shape = tiny_shape(**changes)
    engine = serving(shape, seed=3)
    asked = order("a", random_row(1, 9), tokens_max=12, seed=5, **sampling)
    reply = generate(engine, asked, order("b", random_row(2, 4), tokens_max=6))["a"]
    expected = expected_logprobs(shape, 3, asked, reply.token_ids.tolist())
    np.testing.assert_allclose(reply.logprobs, expected, atol=2e-5)


def test_greedy_takes_the_likeliest_token_and_reports_it_untruncated() -> None:
    """Evaluation at temperature 0 must be repeatable, and its log-prob comparable."""
    engine = serving(seed=1)
    asked = order("a", random_row(0, 6), tokens_max=8, temperature=0.0, top_k=1)
    reply = generate(engine, asked)["a"]
    scored = score(engine, np.concatenate((asked.token_ids, reply.token_ids)))
    np.testing.assert_allclose(reply.logprobs, scored.logprobs[0][6:], atol=1e-5)
    assert reply.logprobs.max() < 0, "a greedy reply's log-prob is not that of a certain event"


def test_the_same_seed_gives_the_same_reply_in_any_company() -> None:
    """A trajectory must not depend on who else happened to be sampled beside it."""
    asked = order("a", random_row(7, 11), tokens_max=20, seed=42)
    alone = generate(serving(), asked)["a"]
    company = [order(f"c{n}", random_row(n, 3 + n), tokens_max=5 + 2 * n, seed=n) for n in range(9)]
    engine = serving()
    engine.generate(company[0])
    step(engine)
    together = generate(engine, *company[1:5], asked, *company[5:])["a"]
    assert together.token_ids.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(together.logprobs, alone.logprobs, atol=1e-5)


def test_other_seeds_give_other_replies_to_the_same_prompt() -> None:
    """A group of identical prompts is only of use when its replies differ."""
    asked = [order(f"r{n}", random_row(3, 5), tokens_max=16, seed=n) for n in range(6)]
    replies = generate(serving(), *asked)
    assert len({tuple(reply.token_ids.tolist()) for reply in replies.values()}) == 6


def test_identical_prompts_of_a_group_are_prefilled_once() -> None:
    """Eight samples of one long prompt: seven of them compute one token, not the prompt."""
    engine = serving(context_tokens=128, slots=8, running_max=8, prefill_tokens_max=128)
    prompt = random_row(0, 60)
    replies = generate(engine, *(order(f"r{n}", prompt, tokens_max=3, seed=n) for n in range(8)))
    assert engine.statistics()["prefilled_tokens"] == 60 + 7
    assert sorted(reply.cached_tokens for reply in replies.values()) == [0] + [59] * 7


def test_a_session_goes_on_from_its_cached_prefix() -> None:
    """Multi-turn agents: a turn computes its delta; the answer is that of a cold engine."""
    engine = serving()
    first = generate(engine, order("t0", random_row(0, 12), "s", tokens_max=6, seed=1))["t0"]
    history = np.concatenate((random_row(0, 12), first.token_ids, random_row(1, 4)))
    second_turn = order("t1", history, "s", tokens_max=9, seed=2)
    warm = generate(engine, second_turn)["t1"]
    cold = generate(serving(), second_turn)["t1"]
    # The last sampled token of a turn went into the row, but never through the model.
    assert warm.cached_tokens == 12 + 6 - 1
    assert cold.cached_tokens == 0
    assert warm.token_ids.tolist() == cold.token_ids.tolist()
    np.testing.assert_allclose(warm.logprobs, cold.logprobs, atol=1e-5)


def test_a_changed_history_reuses_only_what_is_still_the_same() -> None:
    """A branch of a conversation: one differing token ends the reuse, exactly there."""
    engine = serving()
    prompt = random_row(0, 40)
    generate(engine, order("t0", prompt, "s", tokens_max=2))
    changed = prompt.copy()
    changed[25] = (changed[25] + 1) % VOCABULARY
    asked = order("t1", changed, "s", tokens_max=8, seed=3)
    warm, cold = generate(engine, asked)["t1"], generate(serving(), asked)["t1"]
    assert warm.cached_tokens == 25
    np.testing.assert_allclose(warm.logprobs, cold.logprobs, atol=1e-5)


def test_two_branches_of_one_session_run_at_once() -> None:
    """Tree histories: the second branch copies the prefix, neither disturbs the other."""
    engine = serving()
    root = random_row(5, 30)
    generate(engine, order("root", root, "s", tokens_max=1))
    branches = [
        order(f"b{n}", np.concatenate((root, random_row(n, 5))), "s", tokens_max=9, seed=n)
        for n in range(3)
    ]
    together = generate(engine, *branches)
    for branch in branches:
        alone = generate(serving(), branch)[branch.key]
        assert together[branch.key].token_ids.tolist() == alone.token_ids.tolist()
        assert together[branch.key].cached_tokens >= 30


def test_the_least_recently_used_prefix_goes_first_and_forgotten_ones_before_it() -> None:
    """More sessions than rows: the cache keeps those that will come back."""
    engine = serving(slots=4, running_max=2)
    prompts = {name: random_row(n, 20) for n, name in enumerate("abcdef")}
    for name in "abcd":
        generate(engine, order(f"{name}0", prompts[name], name, tokens_max=1))
    engine.forget(("c",))
    generate(engine, order("e0", prompts["e"], "e", tokens_max=1))
    generate(engine, order("f0", prompts["f"], "f", tokens_max=1))
    hits = {
        name: generate(engine, order(f"{name}1", prompts[name], name, tokens_max=1))[f"{name}1"]
        for name in "bdfe"
    }
    assert {name: reply.cached_tokens for name, reply in hits.items()} == dict.fromkeys("bdfe", 19)
    cold = generate(engine, order("c1", prompts["c"], "c", tokens_max=1))["c1"]
    assert cold.cached_tokens == 0


def test_long_prompts_are_cut_into_chunks_while_others_decode() -> None:
    """One 50-token prompt must not hold up replies that are being sampled."""
    engine = serving(prefill_tokens_max=8)
    short = order("short", random_row(0, 3), tokens_max=30, seed=1)
    long = order("long", random_row(1, 50), tokens_max=4, seed=2)
    engine.generate(short)
    step(engine)
    engine.generate(long)
    before = engine.statistics()["generated_tokens"]
    for _ in range(6):
        step(engine)
    assert engine.statistics()["generated_tokens"] == int(str(before)) + 6
    replies = drain(engine)
    whole = generate(serving(), long)["long"]
    chunked = replies["long"]
    assert isinstance(chunked, Finished)
    assert chunked.token_ids.tolist() == whole.token_ids.tolist()
    np.testing.assert_allclose(chunked.logprobs, whole.logprobs, atol=1e-5)


def test_a_stop_token_ends_the_reply_and_is_part_of_it() -> None:
    """The trainer sees the stop token with its log-prob: ending a turn is an action, too."""
    free = generate(serving(), order("a", random_row(0, 5), tokens_max=30, seed=9))["a"]
    stop = int(free.token_ids[7])
    first = free.token_ids.tolist().index(stop)
    asked = order("a", random_row(0, 5), tokens_max=30, seed=9, stop_token_ids=(99, stop))
    stopped = generate(serving(), asked)["a"]
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert free.finish_reason is FinishReason.LENGTH
    assert len(free.token_ids) == 30


def test_stop_ids_of_one_request_do_not_stop_another() -> None:
    """Requests with different numbers of stop ids share a batch."""
    every = tuple(range(VOCABULARY))
    replies = generate(
        serving(),
        order("none", random_row(0, 5), tokens_max=9),
        order("all", random_row(1, 5), tokens_max=9, stop_token_ids=every),
        order("none2", random_row(2, 5), tokens_max=9),
    )
    assert {key: len(reply.token_ids) for key, reply in replies.items()} == {
        "none": 9,
        "all": 1,
        "none2": 9,
    }


def test_a_reply_ends_where_the_context_ends() -> None:
    """A full row is a length stop, never an overrun."""
    reply = generate(serving(context_tokens=16), order("a", random_row(0, 10), tokens_max=50))["a"]
    assert len(reply.token_ids) == 6
    assert reply.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "row has 0 tokens, between 1 and 63 fit"),
        (list(range(20)) * 4, "row has 80 tokens, between 1 and 63 fit"),
        ([1, 2, VOCABULARY], f"token id {VOCABULARY} is outside the vocabulary"),
        ([1, -3], "token id -3 is outside the vocabulary"),
    ],
)
def test_rows_that_cannot_be_computed_are_refused_by_name(row: list[int], reason: str) -> None:
    """A bad id would read another row of the embedding, or crash the engine for everybody."""
    outcomes = serving().generate(order("bad", row))
    assert isinstance(outcomes[0], Rejected)
    assert reason in outcomes[0].reason


def test_an_aborted_request_answers_with_what_it_has() -> None:
    """Running, in prefill, waiting: each ends at once, with its tokens so far."""
    engine = serving(running_max=2, slots=4, prefill_tokens_max=16)
    orders = [order(f"r{n}", random_row(n, 40 if n == 1 else 5), tokens_max=20) for n in range(4)]
    for each in orders:
        engine.generate(each)
    step(engine)
    step(engine)
    ended = engine.abort(("r0", "nobody"), ("r1", "r3"))
    lengths = {o.key: len(o.token_ids) for o in ended if isinstance(o, Finished)}
    assert lengths == {"r0": 2, "r1": 0, "r3": 0}
    assert all(isinstance(o, Finished) and o.finish_reason is FinishReason.ABORT for o in ended)
    assert list(drain(engine)) == ["r2"]
    # What was sampled before the abort is still a prefix that can be gone on from.
    aborted = next(o for o in ended if o.key == "r0")
    assert isinstance(aborted, Finished)
    assert aborted.spans == (VersionSpan(start=0, end=2, version=0),)
    assert generate(engine, orders[0])["r0"].cached_tokens == 4


def test_more_requests_than_rows_all_finish() -> None:
    """Fifty requests over six running rows: nobody starves, nobody is answered twice."""
    engine = serving()
    asked = [order(f"r{n}", random_row(n % 5, 3 + n % 17), tokens_max=1 + n % 9) for n in range(50)]
    replies = generate(engine, *asked)
    assert {key: len(r.token_ids) for key, r in replies.items()} == {
        each.key: each.sampling.tokens_max for each in asked
    }
    assert engine.statistics()["running"] == 0


def test_the_last_of_a_large_batch_do_not_pay_for_its_size() -> None:
    """Rows far apart are computed alone, not with everything that lies between them."""
    engine = serving(slots=32, running_max=32, prefill_tokens_max=512)
    lasting = {3, 17, 30}
    asked = [
        order(f"r{n}", random_row(n, 6), tokens_max=40 if n in lasting else 2, seed=n)
        for n in range(32)
    ]
    for each in asked:
        engine.generate(each)
    outcomes: dict[str, Outcome] = {}
    for _ in range(6):
        outcomes |= {o.key: o for o in step(engine)}
    assert engine._scheduler.decoding.tolist() == [3, 17, 30]
    plan = engine._stepper._planner.plan()
    assert plan is not None
    assert plan.window == 4, "three rows, and one to make up the least number"
    outcomes |= drain(engine)
    for n in lasting:
        alone = generate(serving(), asked[n])[f"r{n}"]
        moved = outcomes[f"r{n}"]
        assert isinstance(moved, Finished)
        assert moved.token_ids.tolist() == alone.token_ids.tolist()


def test_running_more_rows_than_slots_is_refused_at_once() -> None:
    """A configuration that cannot work fails before anything is loaded."""
    with pytest.raises(ValueError, match="running_max 9 is above slots 8"):
        make_engine(running_max=9)
