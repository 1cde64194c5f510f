"""Engines that refuse, die and come back: a turn is tried again, nothing of it was committed."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.kit import QUESTION, Play, ids, play, row_of

from milepost.actors.effects import Answered, Unanswered, Woken
from milepost.actors.session.engines import AVOIDED_S, EnginePool
from milepost.messages.engine import GenerateRefused
from milepost.messages.session import AbandonTrajectory, ChatRefused, ChatReply
from milepost.messages.shared import FinishReason
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trainer import VersionPublished

TWO = ("engine-0", "engine-1")


def die(game: Play, reason: str = "dead") -> str:
    """The engine of the oldest open question does not answer; its name."""
    key, ask, _ = game.open_ask()
    del game.asks[key]
    game.handle(Unanswered(key, ask.to, reason))
    return ask.to


def refuse(game: Play, *, retry: bool) -> None:
    """The engine of the oldest open question refuses it."""
    key, ask, generate = game.open_ask()
    del game.asks[key]
    told = GenerateRefused(request_id=generate.request_id, reason="queue full", retry=retry)
    game.handle(Answered(key, ask.to, told))


def wake(game: Play) -> None:
    """Let the pause before the next try pass."""
    (key,) = [key for key in game.wakes if key.startswith("again/")]
    game.now_s = game.wakes.pop(key)
    game.handle(Woken(key))


def test_sessions_start_where_the_load_is_least_and_stay() -> None:
    """An engine that holds a session's prefix computes the new suffix only."""
    game = play(engines=TWO)
    served = []
    for name in ("g.0", "g.1", "g.2", "g.3"):
        game.open(name)
        game.chat([QUESTION], name)
        served.append(game.open_ask()[1].to)
        game.sample("cat")
    assert served == ["engine-0", "engine-1", "engine-0", "engine-1"]
    reply = {"role": "assistant", "content": "cat"}
    game.chat([QUESTION, reply, {"role": "user", "content": "more"}], "g.3")
    assert game.open_ask()[1].to == "engine-1"


def test_sessions_go_round_the_ranks_of_their_engine_and_stay_on_theirs() -> None:
    """With data-parallel attention, a prefix lies on one rank only."""
    game = play(engines=("engine-0",))
    for name in ("g.0", "g.1", "g.2"):
        game.open(name)
        game.chat([QUESTION], name)
    ranks = {}
    for _ in range(3):
        _, _, generate = game.open_ask()
        ranks[generate.session_id] = generate.rank
        game.sample("cat")
    assert ranks == {"g.0": 0, "g.1": 1, "g.2": 2}
    reply = {"role": "assistant", "content": "cat"}
    game.chat([QUESTION, reply, {"role": "user", "content": "more"}], "g.2")
    assert game.open_ask()[2].rank == 2


def test_session_actors_start_their_ties_at_different_engines() -> None:
    """Two of them must not both send their first sessions to engine 0."""
    assert [EnginePool(TWO, index).take("s", 0.0) for index in range(3)] == [*TWO, "engine-0"]


def test_a_session_moves_when_its_engine_dies_and_says_why() -> None:
    """The same prompt goes to the other engine at once; the trajectory carries the reason."""
    game = play(engines=TWO)
    game.open()
    request = game.chat([QUESTION])
    before = ids(game.open_ask()[2].token_ids)
    assert die(game, "restarted") == "engine-0"
    _, ask, generate = game.open_ask()
    assert (ask.to, ids(generate.token_ids)) == ("engine-1", before)
    game.sample("cat")
    assert isinstance(game.replies[request], ChatReply)
    game.finish()
    trajectory = game.take().trajectory
    assert trajectory.metadata["engine_moves"] == ["engine-0 did not answer: restarted"]
    assert trajectory.turns[0].engine == "engine-1"
    assert game.core.statistics()["engines_failed"] == {"engine-0": "restarted"}


def served_by(game: Play, name: str) -> str:
    """The engine that a new session asks."""
    game.open(name)
    game.chat([QUESTION], name)
    return list(game.asks.values())[-1].to


def test_new_sessions_avoid_a_dead_engine_until_one_of_them_was_served() -> None:
    """It has the fewest sessions because it died, and its death is told long before it is back."""
    game = play(engines=TWO)
    assert served_by(game, "g.0") == "engine-0"
    die(game)
    game.tell(PeerRestarted(actor="engine-0", incarnation=2), "supervisor")
    game.sample("cat")
    for name in ("g.1", "g.2"):
        assert served_by(game, name) == "engine-1"
        game.sample("cat")
    game.now_s += AVOIDED_S
    assert served_by(game, "g.3") == "engine-0", "one session tries it"
    assert served_by(game, "g.4") == "engine-1", "and the others wait for what comes of it"
    refuse(game, retry=True)
    game.sample("cat")
    assert served_by(game, "g.5") == "engine-1", "it lives, but serves no version yet"
    game.sample("cat")
    wake(game)
    game.sample("cat")
    assert served_by(game, "g.6") == "engine-0"
    assert game.core.statistics()["engines_failed"] == {}


def tried(game: Play) -> None:
    """Engine 0 died, was avoided, and is tried by session g.1; engine 1 is well."""
    assert served_by(game, "g.0") == "engine-0"
    die(game)
    game.sample("cat")
    game.now_s += AVOIDED_S
    assert served_by(game, "g.1") == "engine-0"


def test_an_engine_that_hangs_gets_one_session_however_long_it_takes() -> None:
    """Its machine swaps, or its link is dead and says nothing: whoever else is sent there waits as
    long as an episode may take, and all of a group waits for it."""
    game = play(engines=TWO)
    tried(game)
    for number in range(2, 8):
        game.now_s += 2 * AVOIDED_S
        assert served_by(game, f"g.{number}") == "engine-1"


def test_an_engine_whose_trial_failed_is_tried_again_by_one_after_a_while() -> None:
    game = play(engines=TWO)
    tried(game)
    assert die(game) == "engine-0"
    game.sample("cat")
    assert served_by(game, "g.2") == "engine-1"
    game.now_s += AVOIDED_S
    assert served_by(game, "g.3") == "engine-0"
    assert served_by(game, "g.4") == "engine-1"


@pytest.mark.parametrize("how", ["abandoned", "superseded", "refused"])
def test_a_trial_that_ends_without_an_answer_leaves_the_engine_to_the_next(how: str) -> None:
    """The episode was cancelled, or its agent asked anew: nobody waits for that turn any more."""
    game = play(engines=TWO)
    tried(game)
    if how == "abandoned":
        gone = AbandonTrajectory(trajectory_id="g.1", attempt=0, reason="sibling failed")
        game.tell(gone, "rollout")
    elif how == "refused":
        refuse(game, retry=False)
    else:
        game.chat([QUESTION], "g.1")
        assert list(game.asks.values())[-1].to == "engine-1", "one that has not answered is left"
    assert served_by(game, "g.2") == "engine-0"


def test_a_trial_goes_on_while_another_request_of_its_session_is_refused() -> None:
    """The turn that tries the engine is still there: one more session would hang with it."""
    game = play(engines=TWO, context_tokens_max=200)
    tried(game)
    request = game.chat([{"role": "user", "content": "word " * 300}], "g.1")
    refused: Any = game.replies[request]
    assert refused.kind == "limit"
    assert served_by(game, "g.2") == "engine-1"


def test_a_session_whose_engine_died_between_two_turns_moves_with_the_next() -> None:
    """The prefix is gone, and the next incarnation may be long in coming."""
    game = play(engines=TWO)
    game.open()
    reply = game.turn([QUESTION], "cat")
    game.tell(PeerRestarted(actor="engine-0", incarnation=2), "supervisor")
    game.chat([QUESTION, reply, {"role": "user", "content": "more"}])
    assert game.open_ask()[1].to == "engine-1"
    game.sample("cat")
    game.finish()
    trajectory = game.take().trajectory
    assert trajectory.metadata["engine_moves"] == ["engine-0 failed: it died"]


def test_the_only_engine_is_tried_again_after_growing_pauses() -> None:
    """It may be restarting; one that is back serves the turn as if nothing had happened."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    pauses = []
    for _ in range(3):
        die(game)
        before = game.now_s
        wake(game)
        pauses.append(round(game.now_s - before, 3))
    assert pauses == [0.05, 0.1, 0.2]
    game.sample("cat")
    assert isinstance(game.replies[request], ChatReply)


def test_a_busy_engine_keeps_its_session() -> None:
    """It has the prefix; elsewhere all of it would be computed again, and the queue is as full."""
    game = play(engines=TWO)
    game.open()
    request = game.chat([QUESTION])
    pauses = []
    for _ in range(3):
        refuse(game, retry=True)
        assert not game.asks
        before = game.now_s
        wake(game)
        pauses.append(round(game.now_s - before, 3))
        assert game.open_ask()[1].to == "engine-0"
    assert pauses == [0.05, 0.1, 0.2]
    game.sample("cat")
    assert isinstance(game.replies[request], ChatReply)
    assert game.core.statistics()["engine_moves"] == 0


def test_engines_that_are_all_dead_are_not_asked_in_a_ring_without_pause() -> None:
    """They would be asked in turn, thousands of times a second, until one is back."""
    game = play(engines=TWO)
    game.open()
    request = game.chat([QUESTION])
    assert [die(game), die(game)] == ["engine-0", "engine-1"]
    pauses = []
    for _ in range(3):
        assert not game.asks
        before = game.now_s
        wake(game)
        pauses.append(round(game.now_s - before, 3))
        die(game)
    assert pauses == [0.1, 0.2, 0.4]
    wake(game)
    game.sample("cat")
    assert isinstance(game.replies[request], ChatReply)


def test_patience_ends_with_a_reason() -> None:
    """An infrastructure failure, named as one: the agent must not take it for its own."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    while request not in game.replies:
        die(game)
        if request not in game.replies:
            wake(game)
    refused: Any = game.replies[request]
    assert isinstance(refused, ChatRefused)
    assert refused.kind == "engine"
    assert "engine-0 did not answer: dead" in refused.reason
    assert 10.0 <= game.now_s < 13.0
    assert not game.core._sessions["g.0"].flights


def test_a_refusal_that_may_pass_is_tried_again_and_another_is_not() -> None:
    """A full queue empties; a request that is wrong stays wrong."""
    game = play()
    game.open()
    first = game.chat([QUESTION])
    refuse(game, retry=True)
    wake(game)
    game.sample("cat")
    assert isinstance(game.replies[first], ChatReply)
    second = game.chat([QUESTION])
    refuse(game, retry=False)
    refused: Any = game.replies[second]
    assert (refused.kind, "queue full" in refused.reason) == ("engine", True)


def test_an_aborted_generation_is_tried_again_from_its_prompt() -> None:
    """What it had so far is counted as wasted; a reply is one generation or none."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    game.sample("ca", finish_reason=FinishReason.ABORT)
    wasted = game.desk.counters.accounts
    assert wasted["aborted"] > 0
    wake(game)
    game.sample("cat")
    assert isinstance(game.replies[request], ChatReply)
    assert len(row_of(game.core).turns) == 1


def test_an_answer_that_is_broken_is_refused_and_nothing_of_it_stays() -> None:
    """Its tokens would train under versions nobody can name."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    game.sample("cat", spans=())
    refused: Any = game.replies[request]
    assert refused.kind == "engine"
    assert "version spans up to 0" in refused.reason
    assert row_of(game.core).length == 0


def test_tokens_of_weights_that_were_not_published_are_refused_by_name() -> None:
    """An engine that missed an epoch, or serves a version of a lost run, has the number and not
    the weights; its tokens describe another policy than the one that is trained."""
    game = play()
    game.open()
    game.tell(VersionPublished(version=3, digest="digest of 3"), "publisher")
    game.chat([QUESTION])
    game.sample("cat")
    game.tell(VersionPublished(version=3, digest="made anew"), "publisher")
    first = {"role": "assistant", "content": "cat"}
    request = game.chat([QUESTION, first, {"role": "user", "content": "and now?"}])
    game.sample("dog")
    refused: Any = game.replies[request]
    assert refused.kind == "engine"
    assert "weights digest of 3 as version 3, published under this number are made anew" in (
        refused.reason
    )
    assert len(row_of(game.core).turns) == 1


def test_the_late_answer_of_a_dead_engine_changes_nothing() -> None:
    """The session has moved on; the old request's answer belongs to no turn."""
    game = play(engines=TWO)
    game.open()
    game.chat([QUESTION])
    die(game)
    game.sample("dog")
    row = row_of(game.core)
    assert len(row.turns) == 1
