"""A reply that was written to a client which had left is received by nobody, and never judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proc.session_door import Served, served
from proc.test_session_http_limits import chat, opened
from unit.session.kit import QUESTION

from milepost.configs.actors import HttpConfig
from milepost.messages.session import ConversationAsked, ConversationTold

pytestmark = pytest.mark.timeout(60)


def told(scene: Served, session: str) -> ConversationTold:
    """What the session says of its conversation to an agent host that has not seen any of it."""
    asked = ConversationAsked(trajectory_id=session, attempt=0)
    answer: Any = scene.game.replies[scene.game.ask(asked)]
    assert isinstance(answer, ConversationTold)
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_only_what_was_written_to_a_client_that_is_there_was_received(
    *, stream: bool
) -> None:
    """The reply crosses the client's own time-out: its turn commits, and its program goes on."""
    body = json.dumps({"messages": [QUESTION], "stream": stream}).encode()
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        writer.write(chat(session, body))
        await scene.asked()
        # The event loop hears of both in one round.
        writer.transport.abort()
        scene.sample("never read")
        reader, writer = await scene.connect()
        assert told(scene, session) == ConversationTold(), "no reply of any kind"
        writer.write(chat(session, body))
        await scene.asked()
        scene.sample("cat")
        await reader.readuntil(b"cat")
        assert await reader.read(1), "the answer goes on"
        answer = told(scene, session)
    assert (answer.generation, answer.received, answer.num_turns) == (2, (2,), 1)
    assert answer.messages[-1]["content"] == "cat"
