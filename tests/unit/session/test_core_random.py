"""Random clients, engines and orders: the row is always what engines saw and what they sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.session.kit import CALL_TEXT, QUESTION, ROUTES, ids, play, reply_to, tool_result

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Answered, Unanswered, Woken
from milepost.messages.engine import GenerateRefused
from milepost.messages.session import AbandonTrajectory, ChatReply
from milepost.messages.shared import FinishReason

TEXTS = ["cat", CALL_TEXT, f"I look.\n{CALL_TEXT}", "<think>\nhm\n</think>\n\nmia", "a\n\nb"]
ACTIONS = ["chat", "chat", "chat", "answer", "answer", "answer", "retry", "die", "refuse",
           "abort", "wrong", "cut", "finish", "abandon", "open"]  # fmt: skip
steps = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.sampled_from(TEXTS)), max_size=40
)


class Client:
    """One agent: what it believes the conversation to be, and what its session was sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempt = 0
        self.messages: list[dict[str, Any]] = [QUESTION]
        self.request: Any = None
        self.asked: list[dict[str, Any]] = []
        self.turns: list[tuple[list[int], list[int], Any]] = []
        """Prompt, reply and routes of each turn that this client got an answer to."""


@given(steps)
def test_rows_are_exactly_what_engines_saw_and_sampled(
    script: list[tuple[str, int, str]],
) -> None:
    """Two sessions on two engines; every failure in any order; each question answered once.

    After every step the whole state is validated. Delivered rows are compared, token by token,
    with the prompt the engine got for the last committed turn, followed by its sampled reply.
    """
    game = play(engines=("engine-0", "engine-1"), routes=ROUTES)
    clients = [Client("g.0"), Client("g.1")]
    for client in clients:
        game.open(client.name)
    delivered = 0
    for action, index, text in script:
        client = clients[index]
        game.now_s += 0.01
        match action:
            case "chat" | "retry" | "wrong":
                ask(game, client, action)
            case "answer" | "abort" | "cut" | "die" | "refuse":
                for_engine(game, clients, action, text)
            case "finish":
                game.finish(client.name, attempt=client.attempt)
                sent = [tell for tell in game.told if tell.confirm]
                if len(sent) > delivered:
                    delivered = len(sent)
                    check(game.take().trajectory, client)
            case "abandon":
                order = AbandonTrajectory(
                    trajectory_id=client.name, attempt=client.attempt, reason="no"
                )
                game.ask(order, "rollout")
            case "open":
                client.attempt += 1
                client.messages, client.turns = [QUESTION], []
                game.open(client.name, attempt=client.attempt)
        for key in [key for key in game.wakes if key.startswith("again/")]:
            game.now_s = max(game.now_s, game.wakes.pop(key))
            game.handle(Woken(key))


def ask(game: Any, client: Client, action: str) -> None:
    """The client goes on, tries its newest turn again, or sends a history it made up."""
    messages = client.messages
    if action == "retry" and client.turns:
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        messages = messages[:last]
    if action == "wrong":
        messages = [{"role": "user", "content": "made up"}, *messages]
        if len(client.turns) < 2:
            return
    client.asked = messages
    client.request = game.chat(messages, client.name, attempt=client.attempt)


def for_engine(game: Any, clients: list[Client], action: str, text: str) -> None:
    """The oldest open question gets some answer, or none."""
    if not game.asks:
        return
    key, open_ask, generate = game.open_ask()
    del game.asks[key]
    if action == "die":
        game.handle(Unanswered(key, open_ask.to, "dead"))
        return
    if action == "refuse":
        refused = GenerateRefused(request_id=generate.request_id, reason="full", retry=True)
        game.handle(Answered(key, open_ask.to, refused))
        return
    reason = {"answer": FinishReason.STOP, "cut": FinishReason.LENGTH}
    answer = reply_to(generate, text, finish_reason=reason.get(action, FinishReason.ABORT))
    client = next(client for client in clients if client.name == generate.session_id)
    waited = client.request
    was_open = waited is not None and waited not in game.replies
    game.handle(Answered(key, open_ask.to, answer))
    reply = game.replies.get(waited)
    if not was_open or not isinstance(reply, ChatReply):
        return
    prompt, sampled = ids(generate.token_ids), ids(answer.token_ids)
    replaces = sum(message["role"] == "assistant" for message in client.asked)
    assert answer.routes is not None
    client.turns = [*client.turns[:replaces], (prompt, sampled, from_bulk(answer.routes))]
    calls = reply.message.get("tool_calls") or []
    results = [tool_result("cat", call["id"]) for call in calls]
    more = results or [{"role": "user", "content": "go on"}]
    client.messages = [*client.asked, reply.message, *more]


def check(trajectory: Any, client: Client) -> None:
    """The delivered row against what this client's engines saw."""
    row = from_bulk(trajectory.token_ids).tolist()
    assert row == client.turns[-1][0] + client.turns[-1][1]
    assert len(trajectory.turns) == len(client.turns)
    routes = [told for _, _, told in client.turns]
    assert (from_bulk(trajectory.routes) == np.concatenate(routes)).all()
    for turn, (prompt, sampled, _) in zip(trajectory.turns, client.turns, strict=True):
        assert row[: turn.prompt_end] == prompt
        assert row[turn.prompt_end : turn.end] == sampled
