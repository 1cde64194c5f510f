"""Between the engine's orders and the server's own words: pure, and the only place that knows them.

Shapes: P tokens of the prompt, N sampled, K alternatives. The server counts all layers in routes
and gives those without experts numbers that mean nothing; only mixture layers leave this module.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from milepost.actors.engine.embedded.shape import ModelShape
from milepost.actors.engine.interface import GenerateOrder, ScoreOrder
from milepost.messages.shared import FinishReason, SamplingParams, VersionSpan

SEED_MAX: Final = (1 << 63) - 1
CUT_TOKENS_MAX: Final = 4096
"""Tokens that a cut may leave: the server needs a bound to say what it left."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One answer of `/generate`: the reply, or a part of it.

    Attributes:
        token_ids: int32 [N]
        logprobs: float32 [N]
        spans: weight versions as the server tells them; empty when it does not.
        finish_reason: why it ended.
        cached_tokens: prompt tokens that were not computed again.
        top_token_ids: int32 [N, K]
        top_logprobs: float32 [N, K]
        routes: uint8 or int16 [P + N - 1 - start, mixture layers, experts per token], as wanted.
        drafts: (proposed, accepted) tokens of speculative decoding, and passes that judged them.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    cached_tokens: int
    top_token_ids: NDArray[np.int32] | None = None
    top_logprobs: NDArray[np.float32] | None = None
    routes: NDArray[np.uint8 | np.int16] | None = None
    drafts: tuple[int, int, int] = (0, 0, 0)


class AnswerError(RuntimeError):
    """An answer that is not what was asked for; the text names the difference."""


@dataclass(frozen=True, slots=True)
class RoutesWanted:
    """Routes of the tokens from `start` on, of a model of this shape."""

    start: int
    shape: ModelShape


def routes_wanted(
    order: GenerateOrder, row: NDArray[np.int32], shape: ModelShape
) -> RoutesWanted | None:
    """What is not known yet of the routes that were ordered; None when none were.

    A token's routes are those of the pass that the next one was sampled from. So only the last
    token of what has been sampled already is wanted again: it went through no pass yet.
    """
    if order.routes_start is None:
        return None
    has_sampled = len(row) > len(order.token_ids)
    return RoutesWanted(len(row) - 1 if has_sampled else order.routes_start, shape)


def is_cut(sampling: SamplingParams) -> bool:
    """Whether the distribution that is sampled lacks part of the vocabulary."""
    if sampling.temperature == 0:
        return False
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


@dataclass(frozen=True, slots=True)
class Manner:
    """What all requests to one server have in common.

    Attributes:
        prefixes: name space of prefixes; another one after every change of weights.
        seeded: seeds have an effect.
        ranks: data-parallel ranks of the server.
        vocab_size: of the model.
    """

    prefixes: str
    seeded: bool
    ranks: int
    vocab_size: int


def generate_body(
    order: GenerateOrder,
    row: NDArray[np.int32],
    tokens_max: int,
    name: str,
    manner: Manner,
    wanted: RoutesWanted | None = None,
) -> dict[str, Any]:
    """What `/generate` is asked.

    Args:
        order: the request.
        row: int32 [P], its prompt and what it has sampled already.
        tokens_max: most tokens still to be sampled.
        name: of this asking, unique on the server.
        manner: see there.
        wanted: routes to return.
    """
    sampling = order.sampling
    cut = is_cut(sampling)
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or (min(manner.vocab_size, CUT_TOKENS_MAX) if cut else -1),
        "min_p": sampling.min_p,
        "max_new_tokens": tokens_max,
        "skip_special_tokens": False,
    }
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if manner.seeded:
        params["sampling_seed"] = sampling.seed & SEED_MAX
    body: dict[str, Any] = {
        "rid": name,
        "input_ids": row,
        "sampling_params": params,
        "return_logprob": True,
        "extra_key": manner.prefixes,
    }
    if sampling.top_logprobs:
        body["top_logprobs_num"] = sampling.top_logprobs
    if cut:
        body["return_sampling_mask"] = True
        body["sampling_logprobs_mode"] = "selected"
    if order.adapter:
        body["lora_path"] = order.adapter
    if order.stream:
        body["stream"] = True
    if wanted is not None:
        body["return_routed_experts"] = True
        body["routed_experts_start_len"] = wanted.start
    if manner.ranks > 1:
        body["routed_dp_rank"] = order.rank % manner.ranks
    return body


def sampled(
    answer: dict[str, Any], sampling: SamplingParams, wanted: RoutesWanted | None = None
) -> Sampled:
    """Read an answer of `/generate`.

    Args:
        answer: the server's.
        sampling: as asked for.
        wanted: routes that were asked for. A part without a token has none: whoever goes on with
            it computes its prompt anew.

    Raises:
        AnswerError: log-probs, tokens and routes do not belong together.
    """
    meta = answer["meta_info"]
    pairs = meta.get("output_token_logprobs") or []
    token_ids = np.array([pair[1] for pair in pairs], np.int32)
    own = np.array(answer.get("output_ids", token_ids), np.int32)
    if not np.array_equal(own, token_ids):
        raise AnswerError(f"{len(own)} tokens, {len(token_ids)} log-probs, or of other tokens")
    logprobs = np.array([pair[0] for pair in pairs], np.float32)
    if is_cut(sampling):
        values = meta.get("output_token_sampling_logprobs") or []
        if len(values) != len(token_ids):
            raise AnswerError(f"{len(values)} log-probs of {len(token_ids)} tokens after the cut")
        logprobs = np.array(values, np.float32)
    if not np.isfinite(logprobs).all():
        raise AnswerError("log-probs are not finite: the weights have overflowed or hold NaN")
    top_ids, top_logprobs = _alternatives(meta, len(token_ids), sampling.top_logprobs)
    return Sampled(
        token_ids=token_ids,
        logprobs=logprobs,
        spans=_spans(meta.get("weight_versions") or []),
        finish_reason=_finish_reason(meta["finish_reason"]),
        cached_tokens=int(meta.get("cached_tokens", 0)),
        top_token_ids=top_ids,
        top_logprobs=top_logprobs,
        routes=None if wanted is None else _routes(meta, len(token_ids), wanted),
        drafts=_drafts(meta),
    )


def _drafts(meta: dict[str, Any]) -> tuple[int, int, int]:
    names = ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_verify_ct")
    proposed, accepted, passes = (int(meta.get(name, 0)) for name in names)
    return proposed, accepted, passes


def token_ids_of(answer: dict[str, Any]) -> NDArray[np.int32]:
    """int32 [N] sampled so far: every piece of a streamed answer holds all before it."""
    return np.array(answer["output_ids"], np.int32)


def begins_with(answer: dict[str, Any]) -> int | None:
    """Version of the first token sampled; None when there is none, or the server does not tell."""
    spans = _spans(answer["meta_info"].get("weight_versions") or [])
    return spans[0].version if spans else None


def score_body(order: ScoreOrder, name: str, prefixes: str) -> dict[str, Any]:
    """What `/generate` is asked to compute log-probs of whole rows."""
    return {
        "rid": [f"{name}.{index}" for index in range(len(order.rows))],
        "input_ids": [row.tolist() for row in order.rows],
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "extra_key": prefixes,
    }


def scored(answer: dict[str, Any], row: NDArray[np.int32], vocab_size: int) -> NDArray[np.float32]:
    """Float32 [T] log-probs of a row; position 0 is 0.

    Raises:
        AnswerError: they are of another row.
    """
    pairs = answer["meta_info"]["input_token_logprobs"]
    found = np.array([pair[1] for pair in pairs], np.int32)
    # The server takes the vocabulary's last id for the mark of an image and tells it as 0; the
    # log-prob beside it is the token's own.
    told = np.where(row == vocab_size - 1, 0, row)
    if not np.array_equal(found, told):
        raise AnswerError(f"log-probs of {len(found)} tokens for a row of {len(row)}, or of others")
    logprobs = np.array([0.0 if pair[0] is None else pair[0] for pair in pairs], np.float32)
    if not np.isfinite(logprobs).all():
        raise AnswerError("log-probs are not finite: the weights have overflowed or hold NaN")
    return logprobs


def refusal(answer: dict[str, Any]) -> str:
    """Why the server refused a request that it had taken; empty when it did not."""
    reason = answer["meta_info"]["finish_reason"] or {}
    if reason.get("type") == "abort" and reason.get("status_code") not in {None, 200}:
        return str(reason.get("message", reason))
    return ""


def _finish_reason(reason: dict[str, Any] | None) -> FinishReason:
    match (reason or {}).get("type"):
        case "stop":
            return FinishReason.STOP
        case "length":
            return FinishReason.LENGTH
        case "abort":
            return FinishReason.ABORT
        case other:
            raise AnswerError(f"a reply that ended by {other!r}")


def _spans(spans: list[dict[str, Any]]) -> tuple[VersionSpan, ...]:
    found = []
    for span in spans:
        if not str(span["version"]).isdecimal():
            raise AnswerError(f"tokens of version {span['version']!r}, which nobody published")
        found.append(
            VersionSpan(start=span["start"], end=span["end"], version=int(span["version"]))
        )
    return tuple(span for span in found if span.end > span.start)


def _alternatives(
    meta: dict[str, Any], num_tokens: int, wanted: int
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    if not wanted:
        return None, None
    rows = meta.get("output_top_logprobs") or []
    if len(rows) != num_tokens:
        raise AnswerError(f"alternatives of {len(rows)} tokens, {num_tokens} were sampled")
    ids = np.array([[pair[1] for pair in row] for row in rows], np.int32)
    logprobs = np.array([[pair[0] for pair in row] for row in rows], np.float32)
    return ids.reshape(num_tokens, wanted), logprobs.reshape(num_tokens, wanted)


def _routes(
    meta: dict[str, Any], num_tokens: int, wanted: RoutesWanted
) -> NDArray[np.uint8 | np.int16] | None:
    if not num_tokens:
        return None
    if (encoded := meta.get("routed_experts")) is None:
        raise AnswerError(f"no routes of {num_tokens} tokens: was the server started to keep them")
    shape = wanted.shape
    assert shape.routes is not None, "routes of a model without experts"
    values = np.frombuffer(base64.b64decode(encoded), "<i4")
    num_rows = int(meta["prompt_tokens"]) + num_tokens - 1
    width = shape.num_layers * shape.routes.experts_per_token
    if values.size not in (num_rows * width, (num_rows - wanted.start) * width):
        told = f"{num_rows - wanted.start} tokens of {width} experts each"
        raise AnswerError(f"{values.size} routes for {told}")
    per_layer = values.reshape(-1, shape.num_layers, shape.routes.experts_per_token)
    # A release that knows no start tells all.
    fresh = per_layer[len(per_layer) - (num_rows - wanted.start) :]
    found = fresh[:, np.flatnonzero(shape.sparse_layers)]
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < shape.routes.num_experts:
        told = f"from {found.min()} to {found.max()}, there are {shape.routes.num_experts}"
        raise AnswerError(f"routes to experts {told}")
    return found.astype(shape.routes.dtype)
