"""`GET /sessions/{id}`: every turn as the request and response it was, made from the row.

Nothing is kept for this: what a client said and got stands in the session's messages, and a record
is made when somebody asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.actors.session.http.branches import ELSEWHERE
from milepost.actors.session.http.dialect import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from milepost.actors.session.http.branches import Answer, BranchCopy

PATH = "v1/chat/completions"


def records_of(branches: Sequence[BranchCopy], answers: Mapping[int, Answer]) -> bytes:
    """Records of the newest branch, in order: a JSON list.

    Each is written by itself: all of them hold every prompt again, and are never there at once.

    Args:
        branches: of the session.
        answers: by the number of the generation.
    """
    if not branches:
        return b"[]"
    branch = branches[-1]
    records = (
        _record(branch, at, answers.get(number, ELSEWHERE))
        for at, number in enumerate(branch.leaf.path)
    )
    return b"[%s]" % b",".join(encode(record) for record in records)


def _record(branch: BranchCopy, at: int, answer: Answer) -> dict[str, Any]:
    turn, end = branch.turns[at], branch.ends[at]
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
        "timestamp": answer.answered_s,
        "request_timestamp": answer.asked_s,
        "method": "POST",
        "path": PATH,
        "request": request,
        "response": {"object": "chat.completion", "choices": [choice]},
        "status_code": 200,
    }
