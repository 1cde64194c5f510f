"""Random forks in flight at once, with every failure, in any order: rows are what engines saw."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.session.kit import QUESTION, ROUTES, Play, ids, play, reply_to

from milepost.actors.effects import Answered, Unanswered, Woken
from milepost.actors.session.leaves import leaf_of
from milepost.configs.actors import TreeConfig
from milepost.messages.engine import GenerateRefused
from milepost.messages.session import ChatReply, ChatTurn, ClientGone
from milepost.messages.shared import FinishReason
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trajectory import Trajectory

ACTIONS = ["ask", "ask", "ask", "answer", "answer", "answer", "cut", "abort", "refuse", "die",
           "wake", "gone", "lost agent"]  # fmt: skip
SCRIPTS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9), st.sampled_from("abc")), max_size=40
)


class Harness:
    """A client with many conversations, and what its engines were asked and said."""

    def __init__(self) -> None:
        self.game: Play = play(
            engines=("engine-0", "engine-1"),
            tree=TreeConfig(leaf_picker="keep_all"),
            routes=ROUTES,
        )
        self.game.open()
        self.histories: list[list[dict[str, Any]]] = [[]]
        self.asked: dict[Any, list[dict[str, Any]]] = {}
        self.rows: dict[tuple[int, ...], int] = {}
        """Whole rows that an answered turn ended with -> how often."""

    def ask(self, place: int, word: str) -> None:
        base = self.histories[place % len(self.histories)]
        messages = [*base, {"role": "user", "content": word}] if place else [QUESTION]
        source = f"agent-{place % 2}"
        self.asked[self.chat(messages, source)] = messages

    def chat(self, messages: list[dict[str, Any]], source: str) -> Any:
        number = len(self.asked) + 1
        turn = ChatTurn(trajectory_id="g.0", messages=messages, tools=[], number=number)
        return self.game.ask(turn, source)

    def engine(self, action: str, place: int, word: str) -> None:
        keys = list(self.game.asks)
        if not keys:
            return
        key = keys[place % len(keys)]
        ask: Any = self.game.asks.pop(key)
        if action == "die":
            self.game.handle(Unanswered(key, ask.to, "dead"))
            return
        request = ask.message
        if action == "refuse":
            full = GenerateRefused(request_id=request.request_id, reason="full", retry=True)
            self.game.handle(Answered(key, ask.to, full))
            return
        reasons = {"cut": FinishReason.LENGTH, "abort": FinishReason.ABORT}
        answer = reply_to(request, word, finish_reason=reasons.get(action, FinishReason.STOP))
        before = set(self.game.replies)
        self.game.handle(Answered(key, ask.to, answer))
        for known in set(self.game.replies) - before:
            reply = self.game.replies[known]
            if isinstance(reply, ChatReply):
                row = (*ids(request.token_ids), *ids(answer.token_ids))
                self.rows[row] = self.rows.get(row, 0) + 1
                if action == "answer":
                    self.histories.append([*self.asked[known], reply.message])

    def wake(self) -> None:
        for key in [key for key in self.game.wakes if key.startswith("again/")]:
            self.game.now_s = max(self.game.now_s, self.game.wakes.pop(key))
            self.game.handle(Woken(key))

    def stop(self, place: int) -> None:
        """A client hangs up: its turn, and no other, is stopped."""
        session = self.game.core._sessions["g.0"]
        flights = list(session.flights.values())
        if not flights:
            return
        flight = flights[place % len(flights)]
        gone = ClientGone(trajectory_id="g.0", number=flight.number, reason="gone")
        self.game.tell(gone, flight.request.source)
        assert len(session.flights) == len(flights) - 1


def check_counted_rows(game: Play) -> None:
    """What bounds the rows is what would be delivered; retried first prompts count as well."""
    record: Any = game.core._sessions["g.0"].record
    leaves = [leaf_of(branch) for branch in record.branches()]
    assert record._row_tokens([]) == sum(leaf.num_tokens for leaf in leaves)
    record._keeps_retries = False
    kept = [leaf for leaf in leaves if not leaf.retried or len(leaf.path) == 1]
    assert record._row_tokens([]) == sum(leaf.num_tokens for leaf in kept)


@given(SCRIPTS)
def test_rows_of_a_tree_are_exactly_what_engines_saw_and_sampled(
    script: list[tuple[str, int, str]],
) -> None:
    """Every question is answered once, the whole tree is validated after each event.

    A delivered row is the prompt of some answered turn and its reply, token by token, and each of
    its turns is one, too; every answered turn is trained exactly once over all rows.
    """
    harness = Harness()
    game = harness.game
    for action, place, word in script:
        game.now_s += 0.01
        match action:
            case "ask":
                harness.ask(place, word)
            case "wake":
                harness.wake()
            case "gone":
                harness.stop(place)
            case "lost agent":
                game.tell(PeerRestarted(actor=f"agent-{place % 2}", incarnation=1), "supervisor")
            case _:
                harness.engine(action, place, word)
    check_counted_rows(game)
    game.finish()
    assert all(request in game.replies for request in harness.asked), "SE-4 (one answer)"
    if not harness.rows:
        return
    message = game.take()
    rows: list[Trajectory] = [message.trajectory, *message.others]
    trained: dict[tuple[int, ...], int] = {}
    for row in rows:
        tokens = ids(row.token_ids)
        for turn in row.turns:
            whole = tuple(tokens[: turn.end])
            assert whole in harness.rows
            trained[whole] = trained.get(whole, 0) + turn.trained
    assert trained == harness.rows
