"""The server's words, without a server: what is asked, what an answer means, what a release can."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np
import pytest
from contract.kit import MIXTURE, config_json

from milepost.actors.engine.embedded.shape import shape_from_config
from milepost.actors.engine.interface import GenerateOrder, ScoreOrder
from milepost.actors.engine.sglang.capabilities import (
    UnsupportedServerError,
    capabilities_of,
    require,
)
from milepost.actors.engine.sglang.flights import Flight
from milepost.actors.engine.sglang.wire import (
    AnswerError,
    Manner,
    RoutesWanted,
    generate_body,
    refusal,
    routes_wanted,
    sampled,
    score_body,
    scored,
)
from milepost.configs.sglang import command_line, option_faults
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason, SamplingParams, VersionSpan

MANNER = Manner(prefixes="t/3", seeded=False, ranks=1, vocab_size=96)
MIXED = shape_from_config(
    config_json(**{**MIXTURE, "num_hidden_layers": 3, "mlp_only_layers": [1]})
)
"""Three layers, the middle one dense; 2 of 8 experts a token."""


def order(rank: int = 0, *, stream: bool = False, **sampling: Any) -> GenerateOrder:
    row = np.array([1, 2, 3], np.int32)
    return GenerateOrder("k", "s", row, SamplingParams(**sampling), stream=stream, rank=rank)


def routed(start: int) -> GenerateOrder:
    return dataclasses.replace(order(), routes_start=start)


def encoded(rows: int, *, first: int = 0) -> str:
    """Routes as the server tells them, the dense layer with them: row i to i and i + 1, mod 8."""
    chosen = (np.arange(first, first + rows)[:, None, None] + [[0, 1], [99, -7], [0, 1]]) % 8
    chosen[:, 1] = 99
    return base64.b64encode(chosen.astype("<i4").tobytes()).decode()


def answer(num_tokens: int, end: str = "length", **meta: Any) -> dict[str, Any]:
    ids = list(range(10, 10 + num_tokens))
    return {
        "output_ids": ids,
        "meta_info": {
            "finish_reason": {"type": end},
            "prompt_tokens": 3,
            "cached_tokens": 2,
            "spec_num_proposed_drafts": 6,
            "spec_num_correct_drafts": 4,
            "spec_verify_ct": 3,
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            **meta,
        },
    }


def body_of(asked: GenerateOrder, manner: Manner = MANNER) -> dict[str, Any]:
    return generate_body(asked, asked.token_ids, 7, "name", manner)


def test_an_adapter_is_named_beside_the_tokens() -> None:
    """Its prefixes are apart: the server joins its own id of the adapter to ours of the version."""
    body = body_of(dataclasses.replace(order(), adapter="terse"))
    assert body["lora_path"] == "terse"
    assert "lora_path" not in body_of(order())


def test_a_plain_request_asks_for_log_probs_and_nothing_it_does_not_need() -> None:
    body = body_of(order(stop_token_ids=(5,), seed=9))
    assert body["rid"] == "name"
    assert body["return_logprob"] is True
    assert body["extra_key"] == "t/3"
    params = body["sampling_params"]
    assert params["max_new_tokens"] == 7
    assert params["stop_token_ids"] == [5]
    assert params["top_k"] == -1
    assert "sampling_seed" not in params, "a seed without effect"
    extras = {"return_sampling_mask", "routed_dp_rank", "stream", "return_routed_experts"}
    assert not body.keys() & extras


def test_what_is_wanted_beside_is_asked_for() -> None:
    manner = Manner("t/3", seeded=True, ranks=2, vocab_size=96)
    body = body_of(order(3, stream=True, top_p=0.5, seed=(1 << 64) - 1, top_logprobs=2), manner)
    assert body["stream"] is True
    assert body["routed_dp_rank"] == 1
    assert body["top_logprobs_num"] == 2
    assert body["sampling_logprobs_mode"] == "selected"
    assert body["sampling_params"]["top_k"] == 96, "the server needs a bound on what a cut leaves"
    assert 0 <= body["sampling_params"]["sampling_seed"] < 1 << 63


def test_greedy_is_no_cut() -> None:
    assert "return_sampling_mask" not in body_of(order(temperature=0.0, top_p=0.5))


def test_an_answer_is_read_whole() -> None:
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 3}]
    part = sampled(answer(3, weight_versions=spans), SamplingParams())
    assert part.token_ids.tolist() == [10, 11, 12]
    assert part.token_ids.dtype == np.int32
    assert part.logprobs.dtype == np.float32
    assert part.spans == (
        VersionSpan(start=0, end=1, version=4),
        VersionSpan(start=1, end=3, version=5),
    )
    assert part.cached_tokens == 2
    assert part.drafts == (6, 4, 3)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"output_token_logprobs": [[-0.5, 10, None]]}, "3 tokens, 1 log-probs"),
        ({"output_token_logprobs": [[-0.5, token, None] for token in (1, 2, 3)]}, "other tokens"),
        (
            {"output_token_logprobs": [[float("nan"), token, None] for token in (10, 11, 12)]},
            "not finite",
        ),
        ({"weight_versions": [{"version": "default", "start": 0, "end": 3}]}, "nobody published"),
        ({"finish_reason": {"type": "new"}}, "ended by 'new'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(
    change: dict[str, Any], told: str
) -> None:
    """Training on it would be training on a trajectory that the policy never produced."""
    with pytest.raises(AnswerError, match=told):
        sampled(answer(3, **change), SamplingParams())


def test_a_cut_takes_the_log_probs_of_what_is_left() -> None:
    sampling = SamplingParams(top_k=4)
    part = sampled(answer(2, output_token_sampling_logprobs=[-0.1, -0.2]), sampling)
    assert part.logprobs.tolist() == [np.float32(-0.1), np.float32(-0.2)]
    with pytest.raises(AnswerError, match="0 log-probs of 2 tokens after the cut"):
        sampled(answer(2), sampling)


def test_an_abort_of_the_servers_own_is_a_refusal_and_ours_is_not() -> None:
    theirs = {"type": "abort", "message": "too long", "status_code": 400}
    assert refusal(answer(0, finish_reason=theirs)) == "too long"
    assert refusal(answer(0, finish_reason={"type": "abort", "status_code": None})) == ""


def test_scores_are_of_the_row_that_was_asked_for() -> None:
    row = np.array([7, 95, 9], np.int32)
    asked = ScoreOrder("k", (row,), temperature=1.0, use_cache=False)
    assert score_body(asked, "n", "p")["input_ids"] == [[7, 95, 9]]
    # The vocabulary's last id comes back as 0: see `scored`.
    pairs = [[None, 7, None], [-1.0, 0, None], [-2.0, 9, None]]
    found = scored({"meta_info": {"input_token_logprobs": pairs}}, row, 96)
    assert found.tolist() == [0, -1, -2]
    with pytest.raises(AnswerError, match="or of others"):
        scored({"meta_info": {"input_token_logprobs": pairs}}, row, 200)


def test_a_split_reply_is_joined_with_its_versions() -> None:
    """A release without spans: ended at a publication, asked for again, one reply in the end."""
    flight = Flight(order(), tokens_max=5)
    flight.split = True
    first = sampled(answer(2, "abort"), SamplingParams())
    assert not flight.take(first, 4, has_spans=False)
    assert flight.row.tolist() == [1, 2, 3, 10, 11]
    assert flight.take(sampled(answer(3), SamplingParams()), 5, has_spans=False)
    reply = flight.finished()
    assert reply.token_ids.tolist() == [10, 11, 10, 11, 12]
    assert [(span.start, span.end, span.version) for span in reply.spans] == [(0, 2, 4), (2, 5, 5)]
    assert reply.finish_reason is FinishReason.LENGTH
    assert reply.cached_tokens == 2
    assert reply.kv_versions == (4, 5), "a new part begins without keys and values"


def test_a_reply_that_lived_through_publications_says_over_whose_keys() -> None:
    """In place they are those of its first version; a server that retracts computed them anew."""
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 3}]
    flight = Flight(order(), tokens_max=3)
    flight.take(sampled(answer(3, weight_versions=spans), SamplingParams()), 5, has_spans=True)
    assert flight.finished(keeps_caches=True).kv_versions == (4, 4)
    assert flight.finished().kv_versions == (4, 5)


def test_an_abort_that_somebody_asked_for_ends_a_split_reply() -> None:
    flight = Flight(order(), tokens_max=5)
    flight.split = flight.aborted = True
    assert flight.take(sampled(answer(2, "abort"), SamplingParams()), 4, has_spans=False)
    assert flight.finished().finish_reason is FinishReason.ABORT


def test_a_reply_that_was_ended_before_its_first_token_is_an_empty_one() -> None:
    flight = Flight(order(), tokens_max=5)
    reply = flight.finished()
    assert len(reply.token_ids) == len(reply.logprobs) == 0
    assert reply.spans == ()
    assert reply.finish_reason is FinishReason.ABORT


def test_spans_that_leave_tokens_out_are_refused() -> None:
    spans = [{"version": "4", "start": 1, "end": 3}]
    part = sampled(answer(3, weight_versions=spans), SamplingParams())
    with pytest.raises(AnswerError, match="do not cover 3 tokens"):
        Flight(order(), tokens_max=5).take(part, 4, has_spans=True)


def test_routes_are_asked_for_from_the_first_that_is_not_known() -> None:
    """A conversation of many turns tells each route once, not all of them again with each turn."""
    asked = routed(1)
    body = generate_body(
        asked, asked.token_ids, 7, "name", MANNER, routes_wanted(asked, asked.token_ids, MIXED)
    )
    assert body["return_routed_experts"] is True
    assert body["routed_experts_start_len"] == 1
    longer = np.array([1, 2, 3, 10, 11], np.int32)
    wanted = routes_wanted(asked, longer, MIXED)
    assert wanted is not None
    assert wanted.start == 4, "the last token went through no pass yet"
    assert routes_wanted(order(), longer, MIXED) is None


@pytest.mark.parametrize("rows", [4, 5])
def test_routes_are_those_of_mixture_layers_whether_the_start_is_honoured_or_not(
    rows: int,
) -> None:
    """The server counts dense layers, and gives them numbers that mean nothing."""
    wanted = RoutesWanted(1, MIXED)
    told = answer(3, routed_experts=encoded(rows, first=5 - rows))
    found = sampled(told, SamplingParams(), wanted).routes
    assert found is not None
    assert found.dtype == np.uint8
    assert found.shape == (4, 2, 2)
    assert found[:, :, 0].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_routes_that_do_not_fit_are_refused_with_their_numbers() -> None:
    """Routes of another row, or none, are no routes: the request fails, not the training."""
    wanted = RoutesWanted(0, MIXED)
    with pytest.raises(AnswerError, match="no routes of 3 tokens"):
        sampled(answer(3), SamplingParams(), wanted)
    with pytest.raises(AnswerError, match="18 routes for 5 tokens of 6 experts each"):
        sampled(answer(3, routed_experts=encoded(3)), SamplingParams(), wanted)
    wild = base64.b64encode(np.full((5, 6), 8, "<i4").tobytes()).decode()
    with pytest.raises(AnswerError, match="routes to experts from 8 to 8, there are 8"):
        sampled(answer(3, routed_experts=wild), SamplingParams(), wanted)


def test_routes_of_a_split_reply_are_those_each_token_was_sampled_through() -> None:
    """After a publication the prompt is computed anew, through other experts: they are not used."""
    asked = routed(0)
    flight = Flight(asked, tokens_max=5)
    flight.split = True
    nothing = answer(0, "abort")
    flight.take(sampled(nothing, SamplingParams(), RoutesWanted(0, MIXED)), 3, has_spans=False)
    flight.split = True
    wanted = routes_wanted(asked, flight.row, MIXED)
    first = answer(2, "abort", routed_experts=encoded(4))
    flight.take(sampled(first, SamplingParams(), wanted), 4, has_spans=False)
    wanted = routes_wanted(asked, flight.row, MIXED)
    second = answer(2, routed_experts=encoded(6, first=10), prompt_tokens=5)
    flight.take(sampled(second, SamplingParams(), wanted), 5, has_spans=False)
    found = flight.finished().routes
    assert found is not None
    assert found[:, 0, 0].tolist() == [0, 1, 2, 3, 14 % 8, 15 % 8]


def test_an_aborted_reply_has_no_routes() -> None:
    flight = Flight(routed(0), tokens_max=5)
    told = answer(2, "abort", routed_experts=encoded(4))
    flight.take(sampled(told, SamplingParams(), RoutesWanted(0, MIXED)), 4, has_spans=False)
    assert flight.finished().routes is None


@pytest.mark.parametrize(
    ("version", "spans", "retracts", "in_place"),
    [
        ("0.5.17", False, False, False),
        ("0.5.20", True, False, True),
        ("0.5.21", True, True, True),
        ("0.6.0", True, True, True),
    ],
)
def test_releases_differ(version: str, *, spans: bool, retracts: bool, in_place: bool) -> None:
    found = capabilities_of(version)
    assert found.spans is spans
    assert found.lives_through(PauseMode.RETRACT) is retracts
    assert found.lives_through(PauseMode.IN_PLACE) is in_place
    assert not found.lives_through(PauseMode.RETRACT, keeps_routes=True), "routes would be replaced"
    assert found.lives_through(PauseMode.IN_PLACE, keeps_routes=True) is in_place
    assert not found.lives_through(PauseMode.RETRACT, stages=2), "the server would end"


def test_a_release_that_lacks_what_is_needed_is_refused_with_all_that_is_missing() -> None:
    with pytest.raises(UnsupportedServerError, match=r"in_place.*, and log-probs of cut"):
        require(capabilities_of("0.5.17"), pause="in_place", is_cut=True)
    require(capabilities_of("0.5.21"), pause="in_place", is_cut=True)
    with pytest.raises(UnsupportedServerError, match=r"0\.5\.9 lacks"):
        capabilities_of("0.5.9")
    with pytest.raises(UnsupportedServerError, match="calls its version 'x'"):
        capabilities_of("x")


def test_options_become_words() -> None:
    options = {"b": True, "a": 2, "c": ["x", "y"], "d": {"k": 1}}
    assert command_line(options) == ["--a", "2", "--b", "--c", "x", "y", "--d", '{"k": 1}']
    faults = option_faults({"port": 1, "tp_size": 2, "x": False, "--y": 1, "z": None, "fine": 1})
    assert set(faults) == {"port", "tp_size", "x", "--y", "z"}
