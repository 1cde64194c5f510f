"""What an engine answers is checked before a token of it reaches a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from unit.session.kit import digest_of, weights_used

from milepost.actors.arrays import to_bulk
from milepost.actors.session.generation import EngineFault, read_generated
from milepost.messages.engine import Generated
from milepost.messages.shared import FinishReason, VersionSpan, WeightsUsed


def span(start: int, end: int, version: int = 1) -> VersionSpan:
    """A version span."""
    return VersionSpan(start=start, end=end, version=version)


def generated(token_ids: Any = (5, 6, 9), logprobs: Any = (-0.5, -1.0, -2.0), **fields: Any) -> Any:
    """An answer of three tokens, 9 being the stop token."""
    fields = {
        "spans": (span(0, 3),),
        "finish_reason": FinishReason.STOP,
        "cached_tokens": 0,
        **fields,
    }
    fields.setdefault("weights", weights_used(fields["spans"]))
    return Generated(
        request_id="r",
        token_ids=to_bulk(np.array(token_ids, dtype=np.int32)),
        logprobs=to_bulk(np.array(logprobs, dtype=np.float32)),
        **fields,
    )


def of_weights(digest: str) -> WeightsUsed:
    """Word of version 1 with these weights."""
    return WeightsUsed(version=1, digest=digest, kv_version=1)


def read(answer: Generated) -> Any:
    """Read it as an answer to a request for at most 4 tokens."""
    return read_generated(
        answer,
        engine="engine-0",
        tokens_max=4,
        stop_token_ids=(9,),
        digests={version: digest_of(version) for version in range(4)},
    )


def test_a_good_answer_is_taken_as_it_is() -> None:
    """Without a copy."""
    reply = read(generated(spans=(span(0, 1, 3), span(1, 3, 4))))
    assert reply.token_ids.tolist() == [5, 6, 9]
    assert reply.logprobs.tolist() == [-0.5, -1.0, -2.0]
    assert not reply.token_ids.flags.owndata


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (generated(logprobs=(-1.0, -1.0)), "log-probs as .* for token ids"),
        (generated((), (), spans=()), "0 tokens, from 1 to 4"),
        (generated((5,) * 5, (-1.0,) * 5, spans=(span(0, 5),)), "5 tokens, from 1 to 4"),
        (generated((5, -1, 9)), "token id -1 at 1"),
        (generated(logprobs=(-1.0, math.nan, -1.0)), "log-prob nan at 1"),
        (generated(logprobs=(-1.0, -math.inf, math.inf)), "log-prob -inf at 1"),
        (generated(spans=()), "version spans up to 0 of 3 tokens"),
        (generated(spans=(span(0, 2),)), "version spans up to 2 of 3 tokens"),
        (generated(spans=(span(1, 3),)), "where one from 0 is expected"),
        (generated(spans=(span(0, 2), span(1, 3))), "where one from 2 is expected"),
        (generated(weights=()), r"tokens of versions \(1,\), and word of the weights .* \(\)"),
        (generated(weights=weights_used((span(0, 3, 2),))), r"\(1,\), and word .* \(2,\)"),
        (generated(weights=(of_weights("other"),)), "weights other as version 1, published .* 1"),
        (generated(weights=(of_weights(""),)), "no digest of the weights of version 1"),
        (generated((5, 6, 7)), r"last token 7 is not in \[9\]"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused_by_name(answer: Generated, told: str) -> None:
    """Each of these has silently trained somebody's model on tokens nobody sampled."""
    with pytest.raises(EngineFault, match=f"engine-0 answered r with .*{told}"):
        read(answer)


def test_wrong_types_are_refused() -> None:
    """Log-probs in half precision, or ids in 64 bits, are another contract."""
    wide = generated()
    wide = Generated(
        request_id="r", token_ids=to_bulk(np.array([5, 6, 9])), logprobs=wide.logprobs,
        spans=wide.spans, finish_reason=FinishReason.STOP, cached_tokens=0,
    )  # fmt: skip
    with pytest.raises(EngineFault, match=r"token ids as Bulk\(int64"):
        read(wide)


def test_a_reply_that_ran_out_of_room_needs_no_stop_token() -> None:
    """It was cut off; its last token is just a token."""
    assert read(generated((5, 6, 7), finish_reason=FinishReason.LENGTH)).token_ids[-1] == 7


def test_a_reply_that_ends_itself_with_its_last_token_has_ended_by_itself() -> None:
    """Engines that look at the bound first call it a length: its end would stay in its text."""
    reply = read(generated(finish_reason=FinishReason.LENGTH))
    assert reply.finish_reason is FinishReason.STOP
    assert reply.token_ids.tolist() == [5, 6, 9]
