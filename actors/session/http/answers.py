"""Refusals as HTTP: which kind has which status, and in whose words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from milepost.actors.session.http.dialect import Fault, encode
from milepost.actors.session.http.dialects import dialect_of
from milepost.messages.session import ChatRefused

if TYPE_CHECKING:
    from milepost.actors.session.http.dialect import Dialect
    from milepost.messages.shared import Message

STATUS: Final[dict[str, int]] = {
    "bad_request": 400,
    "not_append_only": 400,
    "limit": 400,
    "truncated": 409,
    # Clients try a 409 again, and two that do would supersede each other for ever.
    "closed": 410,
    "unknown_session": 404,
    "unknown_adapter": 404,
    "engine": 502,
    "internal": 500,
}
JSON: Final = "application/json"
NO_RETRY: Final = {"x-should-retry": "false"}
"""OpenAI's and Anthropic's clients heed it: what was refused once is refused again."""


def fault_of(answer: Message) -> Fault:
    """Why the core gave no reply."""
    assert isinstance(answer, ChatRefused), f"a chat was answered with {answer}"
    return Fault(STATUS[answer.kind], answer.kind, answer.reason, answer.limit)


def refusal(dialect: Dialect, answer: Message) -> web.Response:
    """The core's refusal, in the words of a dialect."""
    fault = fault_of(answer)
    headers = None if fault.status >= 500 else NO_RETRY
    return web.Response(
        body=dialect.fault(fault), status=fault.status, headers=headers, content_type=JSON
    )


def error(
    status: int, reason: str, headers: dict[str, str] | None = None, *, path: str = ""
) -> web.Response:
    """A refusal of the door's own: in the words of the path's dialect, or `{"error": text}`."""
    dialect = dialect_of(path)
    body = dialect.fault(Fault(status, "", reason)) if dialect else encode({"error": reason})
    return web.Response(body=body, status=status, headers=headers, content_type=JSON)
