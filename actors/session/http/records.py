"""`GET /sessions/{id}`: every turn as the request and response it was, made from the row.

Nothing is kept for this: what a client said and got stands in the session's messages, and a record
is made when somebody asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.actors.session.http.dialect import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.http.branches import BranchCopy

PATH = "v1/chat/completions"


def records_of(branches: Sequence[BranchCopy], times: Sequence[tuple[float, float]]) -> bytes:
    """Records of the newest branch, in order: a JSON list.

    Each is written by itself: all of them hold every prompt again, and are never there at once.

    Args:
        branches: of the session.
        times: for each of its turns, when it was asked and answered, Unix time.
    """
    if not branches:
        return b"[]"
    branch = branches[-1]
    padded = [*times[-len(branch.turns) :]]
    padded = [(0.0, 0.0)] * (len(branch.turns) - len(padded)) + padded
    numbers = range(len(branch.turns))
    return b"[%s]" % b",".join(encode(_record(branch, at, *padded[at])) for at in numbers)


def _record(branch: BranchCopy, number: int, asked_s: float, answered_s: float) -> dict[str, Any]:
    turn, end = branch.turns[number], branch.ends[number]
    message = branch.messages[end - 1]
    reply = slice(turn.prompt_end, turn.end)
    pairs = zip(branch.logprobs[reply].tolist(), branch.token_ids[reply].tolist(), strict=True)
    finish = turn.finish_reason.value
    if message.get("tool_calls") and finish == "stop":
        finish = "tool_calls"
    meta = {
        "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
        "completion_tokens": turn.end - turn.prompt_end,
        "prompt_tokens": turn.prompt_end,
    }
    if turn.adapter:
        # Whoever trains on these log-probs must know that they are not the policy's.
        meta["adapter"] = turn.adapter
    choice = {"index": 0, "message": message, "finish_reason": finish, "meta_info": meta}
    request: dict[str, Any] = {
        "messages": branch.messages[: end - 1],
        "input_ids": branch.token_ids[: turn.prompt_end].tolist(),
    }
    if branch.tools:
        request["tools"] = branch.tools
    return {
        "timestamp": answered_s,
        "request_timestamp": asked_s,
        "method": "POST",
        "path": PATH,
        "request": request,
        "response": {"object": "chat.completion", "choices": [choice]},
        "status_code": 200,
    }
