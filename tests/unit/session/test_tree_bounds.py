"""What bounds one branch of a tree says nothing of the others, and is not forgotten for them."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.kit import QUESTION, Play, play, refused

from milepost.configs.actors import TreeConfig
from milepost.messages.session import ChatReply, ConversationAsked, TrajectorySent
from milepost.messages.shared import EpisodeLimits, FinishReason, Status


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def two_turns(tree: TreeConfig | None = None, **limits: int) -> tuple[Play, list[Any]]:
    """A conversation of two turns, and what its third one would ask."""
    game = play(tree=tree or TreeConfig())
    game.open(limits=EpisodeLimits(**limits))
    one = game.turn([QUESTION], "one")
    two = game.turn([QUESTION, one, user("more")], "two")
    return game, [QUESTION, one, user("more"), two, user("and more")]


def rows(game: Play, **verdict: Any) -> dict[str, tuple[str, str]]:
    """Status and limit of each delivered row, by the number of its last turn."""
    game.finish(**verdict)
    message = game.take()
    told = (message.trajectory, *message.others)
    return {
        "/".join(map(str, row.metadata.get("turns", ()))): (row.status.value, row.metadata["limit"])
        for row in told
    }


def told(game: Play) -> str:
    """The limit that the session tells an agent host."""
    replies = [each for each in game.replies.values() if isinstance(each, ChatReply)]
    received = tuple(reply.generation for reply in replies)
    asked = ConversationAsked(trajectory_id="g.0", attempt=0, received=received)
    answer: Any = game.replies[game.ask(asked)]
    limit: str = answer.limit
    return limit


FINE, CUT = ("completed", ""), ("truncated", "turns_max")


@pytest.mark.parametrize("verdict", [{}, {"status": Status.TRUNCATED, "limit": "turns_max"}])
def test_the_branch_that_was_refused_is_truncated_and_no_other(verdict: dict[str, Any]) -> None:
    """Whether its agent ends there, or goes on as if nothing had been."""
    game, asks = two_turns(turns_max=2)
    game.turn([user("sub agent")], "three")
    refused(game, game.chat(asks), "limit")
    assert told(game) == "turns_max"
    assert rows(game, **verdict) == {"1/2": CUT, "3": FINE}


def test_a_turn_of_another_branch_does_not_lift_the_bound() -> None:
    game, asks = two_turns(turns_max=2)
    refused(game, game.chat(asks), "limit")
    game.turn([user("sub agent")], "three")
    assert told(game) == "", "the newest request was served"
    assert rows(game) == {"1/2": CUT, "3": FINE}


@pytest.mark.parametrize(("received", "end"), [((), "1/2/4"), ((1, 2, 5), "1/2")])
def test_a_turn_of_the_same_branch_lifts_the_bound(received: tuple[int, ...], end: str) -> None:
    """The request was made shorter, and was served, even if its reply is not waited for."""
    game, asks = two_turns(tokens_max=400)
    request = game.chat([*asks[:-1], user("x" * 5000)])
    game.work()
    refused(game, request, "limit")
    game.turn(asks, "three")
    game.turn([user("sub agent")], "four")
    assert rows(game, generation=5, received=received) == {end: FINE, "5": FINE}


@pytest.mark.parametrize("limit", ["seconds_max", "nodes_max"])
def test_what_ends_the_whole_episode_ends_every_branch(limit: str) -> None:
    """Time is up for all of them; and no branch alone has filled the tree."""
    game, _ = two_turns(TreeConfig(nodes_max=3))
    game.turn([user("sub agent")], "three")
    if limit == "nodes_max":
        refused(game, game.chat([user("another")]), "limit")
    both = {"1/2": ("truncated", limit), "3": ("truncated", limit)}
    assert rows(game, status=Status.TRUNCATED, limit=limit) == both


def test_a_full_tree_ends_the_branch_that_it_refuses_to_continue() -> None:
    game, asks = two_turns(TreeConfig(nodes_max=3))
    game.turn([user("sub agent")], "three")
    refused(game, game.chat(asks), "limit")
    assert rows(game) == {"1/2": ("truncated", "nodes_max"), "3": FINE}


@pytest.mark.parametrize("verdict", [{}, {"status": Status.TRUNCATED, "limit": "reply_tokens_max"}])
def test_a_side_question_that_is_kept_short_by_its_client_ends_nothing(
    verdict: dict[str, Any],
) -> None:
    """Harnesses ask for a title in three tokens, at any time."""
    game, _ = two_turns()
    game.chat([user("a title?")], tokens_max=3)
    game.sample("a t", finish_reason=FinishReason.LENGTH)
    assert told(game) == ""
    assert rows(game, **verdict) == {"1/2": FINE, "3": FINE}


def test_a_reply_that_the_run_cut_off_is_truncated_whatever_its_client_allowed() -> None:
    game, _ = two_turns(reply_tokens_max=8)
    game.chat([user("go on")], tokens_max=8)
    game.sample("a t", finish_reason=FinishReason.LENGTH)
    assert told(game) == "reply_tokens_max"
    assert rows(game)["3"] == ("truncated", "reply_tokens_max")


# ---- rows together -----------------------------------------------------------------------


def shared(tokens_max: int, **tree: Any) -> tuple[Play, list[Any]]:
    """A long first turn, that every later one continues."""
    game = play(tree=TreeConfig(tokens_max=tokens_max, **tree))
    game.open()
    first = user("a long prompt " * 12)
    return game, [first, game.turn([first], "one")]


def lengths(game: Play) -> list[int]:
    """Tokens of each delivered row."""
    request = game.finish()
    while game.works:
        game.work()
    message = game.take()
    assert isinstance(game.replies[request], TrajectorySent)
    return [row.token_ids.shape[0] for row in (message.trajectory, *message.others)]


def test_a_turn_that_would_make_the_rows_too_long_is_refused_and_the_rest_is_delivered() -> None:
    """What branches share is delivered with each: the verdict lost a session that held little."""
    game, base = shared(600)
    for number in range(9):
        asks = [*base, user(f"sub {number}")]
        request = game.chat(asks)
        if not game.asks:
            break
        game.sample("done")
        answer: Any = game.replies[request]
        game.turn([*asks, answer.message, user("more")], "ok")
    told = refused(game, request, "limit")
    assert "what they share counted in each, actors.session.tree.tokens_max is 600" in told
    delivered = lengths(game)
    assert len(delivered) > 1
    assert 600 - max(delivered) < sum(delivered) < 600


def test_a_branch_that_only_grows_is_bounded_by_what_it_holds() -> None:
    game, base = shared(600)
    for _ in range(20):
        base = [*base, user("go on")]
        base.append(game.turn(base, "ok"))
    assert max(lengths(game)) > 300


def test_forks_in_flight_count_with_what_they_share() -> None:
    """A burst of them would get past the bound, each alone within it."""
    game, base = shared(600, leaf_picker="keep_all")
    requests = [game.chat([*base, user(f"sub {number}")]) for number in range(9)]
    open_asks = len(game.asks)
    assert 2 < open_asks < 9
    assert all("counted in each" in refused(game, one, "limit") for one in requests[open_asks:])
    while game.asks:
        game.sample("ok")
    assert sum(lengths(game)) < 600 + open_asks * 16, "new text and replies come on top"


def test_retries_that_are_not_delivered_do_not_count() -> None:
    """A harness that asks the same again and again delivers one row of it."""
    game, base = shared(600)
    for _ in range(9):
        game.turn([*base, user("again")], "ok")
    assert len(lengths(game)) == 1
