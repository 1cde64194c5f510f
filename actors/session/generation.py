"""What an engine answered, checked before a token of it reaches a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.actors.arrays import from_bulk
from milepost.actors.session.reply import SampledReply
from milepost.messages.session import ChatReply
from milepost.messages.shared import FinishReason, Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from milepost.actors.routes import RoutesShape
    from milepost.actors.session.families import ParsedReply
    from milepost.actors.session.record import Turn
    from milepost.actors.session.state import Flight
    from milepost.messages.bulk import Bulk
    from milepost.messages.engine import Generated
    from milepost.messages.shared import ChatMessage, ToolCall, VersionSpan


class EngineFault(ValueError):
    """The engine's answer contradicts itself or the request; nothing of it is used."""


@dataclass(frozen=True, slots=True)
class RoutesExpected:
    """Routes of the tokens from `start` to the last but one of the reply."""

    shape: RoutesShape
    start: int
    prompt_tokens: int


def num_sampled(generated: Generated) -> int:
    """Tokens of an answer that nobody has checked."""
    shape = generated.token_ids.shape
    return shape[0] if shape else 0


def read_generated(
    generated: Generated,
    *,
    engine: str,
    tokens_max: int,
    stop_token_ids: Collection[int],
    digests: Mapping[int, str],
    routes: RoutesExpected | None = None,
    adapter: str = "",
) -> SampledReply:
    """The sampled tokens, when everything about them fits together.

    Args:
        generated: the answer.
        engine: who gave it.
        tokens_max: as requested.
        stop_token_ids: as requested.
        digests: of published versions, as the publisher says.
        routes: as requested.
        adapter: as requested.

    Raises:
        EngineFault: lengths differ, a log-prob is not finite, versions do not cover the reply,
            their weights are not the published ones, the finish reason is not what the tokens
            say, or routes are not those of the tokens that were asked for.
    """
    fault = _shape_fault(generated.token_ids, generated.logprobs) or _routes_fault(
        generated, routes
    )
    if not fault:
        token_ids = from_bulk(generated.token_ids)
        reply = SampledReply(
            token_ids=token_ids,
            logprobs=from_bulk(generated.logprobs),
            spans=generated.spans,
            finish_reason=_finish_reason(generated.finish_reason, token_ids, stop_token_ids),
            engine=engine,
            incarnation=generated.incarnation,
            adapter=adapter,
            cached_tokens=generated.cached_tokens,
            weights=generated.weights,
            routes=None if generated.routes is None else from_bulk(generated.routes),
        )
        fault = _fault(reply, tokens_max, stop_token_ids) or _weights_fault(reply, digests)
    if fault:
        raise EngineFault(f"{engine} answered {generated.request_id} with {fault}")
    return reply


def _finish_reason(
    told: FinishReason, token_ids: NDArray[np.int32], stop_token_ids: Collection[int]
) -> FinishReason:
    """Why the reply ended: by itself also where its stop token was the last that it might have.

    Some engines look at the bound first, and call that a length.
    """
    if told is FinishReason.LENGTH and len(token_ids) and int(token_ids[-1]) in stop_token_ids:
        return FinishReason.STOP
    return told


def _fault(reply: SampledReply, tokens_max: int, stop_token_ids: Collection[int]) -> str:
    token_ids, logprobs = reply.token_ids, reply.logprobs
    count = len(token_ids)
    if not 0 < count <= tokens_max:
        return f"{count} tokens, from 1 to {tokens_max} were asked for"
    # The ufuncs themselves: the methods of arrays take three times as long for a short reply.
    if (lowest := int(np.minimum.reduce(token_ids))) < 0:
        return f"token id {lowest} at {int(token_ids.argmin())}"
    finite = np.isfinite(logprobs)
    if not np.logical_and.reduce(finite):
        place = int(np.argmin(finite))
        return f"log-prob {logprobs[place]} at {place}"
    covered = _cover_fault(reply.spans, count)
    if covered:
        return covered
    last = int(token_ids[-1])
    if reply.finish_reason is FinishReason.STOP and last not in stop_token_ids:
        return f"finish reason stop, but last token {last} is not in {sorted(stop_token_ids)}"
    return ""


def _shape_fault(token_ids: Bulk, logprobs: Bulk) -> str:
    if token_ids.dtype != "int32" or len(token_ids.shape) != 1:
        return f"token ids as {token_ids}, int32 [N] is expected"
    if logprobs.dtype != "float32" or logprobs.shape != token_ids.shape:
        return f"log-probs as {logprobs} for token ids {token_ids}, float32 [N] is expected"
    return ""


def _routes_fault(generated: Generated, expected: RoutesExpected | None) -> str:
    if expected is None:
        return "" if generated.routes is None else "routes that nobody asked for"
    end = expected.prompt_tokens + generated.token_ids.shape[0] - 1
    return expected.shape.fault(generated.routes, end - expected.start)


def _cover_fault(spans: tuple[VersionSpan, ...], count: int) -> str:
    place = 0
    for span in spans:
        if span.start != place or span.end <= span.start:
            return f"version span {span} where one from {place} is expected"
        place = span.end
    return "" if place == count else f"version spans up to {place} of {count} tokens"


def _weights_fault(reply: SampledReply, digests: Mapping[int, str]) -> str:
    versions, told = versions_of(reply.spans), tuple([used.version for used in reply.weights])
    if versions != told:
        return f"tokens of versions {versions}, and word of the weights of versions {told}"
    for used in reply.weights:
        if not used.digest:
            return f"no digest of the weights of version {used.version}"
        if (published := digests.get(used.version, used.digest)) != used.digest:
            return (
                f"weights {used.digest} as version {used.version}, published under this number "
                f"are {published}"
            )
    return ""


def versions_of(spans: tuple[VersionSpan, ...]) -> tuple[int, ...]:
    """Of the spans, in order, each once."""
    if len(spans) == 1:
        return (spans[0].version,)
    return tuple(dict.fromkeys(span.version for span in spans))


def reply_message(parsed: ParsedReply) -> ChatMessage:
    """The assistant's message in the OpenAI shape."""
    message: ChatMessage = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [tool_call(call) for call in parsed.tool_calls]
    return message


def tool_call(call: ToolCall) -> dict[str, Any]:
    """One call in the OpenAI shape."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def chat_reply(turn: Turn, flight: Flight) -> ChatReply:
    """The answer to a chat turn that was committed."""
    reply = turn.reply
    return ChatReply(
        message=turn.message,
        finish_reason=reply.finish_reason,
        usage=Usage(
            prompt_tokens=flight.prompt_tokens,
            completion_tokens=len(reply.token_ids),
            cached_tokens=flight.cached_tokens,
        ),
        versions=versions_of(reply.spans),
        generation=turn.number,
        limit=turn.cut_by,
    )
