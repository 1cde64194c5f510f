"""All dialects, by the paths that they are spoken on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from milepost.actors.session.http.anthropic_messages import AnthropicMessages
from milepost.actors.session.http.chat_completions import ChatCompletions
from milepost.actors.session.http.responses import Responses

if TYPE_CHECKING:
    from milepost.actors.session.http.dialect import Dialect

DIALECTS: Final[dict[str, Dialect]] = {
    "chat/completions": ChatCompletions(),
    "responses": Responses(),
    "messages": AnthropicMessages(),
}
"""By the path after `/v1/`; what one of them knows stands in its arguments."""


def dialect_of(path: str) -> Dialect | None:
    """What a client speaks that asks for this path, whether or not its session is there."""
    words = path.strip("/").split("/", 3)
    if len(words) < 4 or (words[0], words[2]) != ("sessions", "v1"):
        return None
    return DIALECTS.get(words[3].removesuffix("/count_tokens"))
