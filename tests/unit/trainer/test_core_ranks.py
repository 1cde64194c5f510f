"""Ranks that lead and follow: one order of collective work, one door for all."""

from __future__ import annotations

from unit.trainer.play import Play, batch, follow, play

from milepost.actors.effects import Ask, Fail, Unanswered, WorkDone
from milepost.actors.trainer.works import (
    ExportVersion,
    SaveCheckpoint,
    ScoreTokens,
    TrainBatch,
)
from milepost.messages.buffer import GroupsRefused
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, Refused
from milepost.messages.trainer import (
    PartChecked,
    RankOrder,
    RankOrdered,
    ScoreRows,
)

TWO = ("trainer-0", "trainer-1")


def orders(game: Play) -> list[RankOrdered]:
    return game.all(RankOrdered)


def part(step: int, attempt: int = 0, refused: str = "") -> PartChecked:
    groups = (refused,) if refused else ()
    reasons = ("C3 same log-probs: nan",) if refused else ()
    return PartChecked(step=step, attempt=attempt, rank=1, group_ids=groups, reasons=reasons)


def test_a_step_begins_only_when_every_rank_has_a_checked_part() -> None:
    game = play(ranks=TWO)
    game.bring(0)
    assert not game.has(TrainBatch)
    assert "waits for trainer-1 to have step 0" in game.core.working_on()
    game.receive(part(0), "trainer-1")
    assert game.has(TrainBatch)
    assert [each.order for each in orders(game)] == [
        RankOrder.EXPORT,
        RankOrder.ASK,
        RankOrder.TRAIN,
    ]
    assert [each.index for each in orders(game)] == [0, 1, 2]


def test_what_another_ranks_door_refuses_is_refused_for_all() -> None:
    game = play(ranks=TWO)
    game.bring(0)
    game.receive(part(0, refused="b0"), "trainer-1")
    assert not game.has(TrainBatch)
    assert game.all(GroupsRefused)[0].group_ids == ("b0",)
    game.taken()
    ask = orders(game)[-1]
    assert (ask.order, ask.step, ask.attempt) == (RankOrder.ASK, 0, 1)
    game.answer(batch(0, ("a", "c")))
    game.check()
    game.receive(part(0, attempt=0), "trainer-1")
    assert not game.has(TrainBatch), "that was the part of the first attempt"
    game.receive(part(0, attempt=1), "trainer-1")
    assert game.has(TrainBatch)


def test_an_order_that_a_rank_does_not_take_ends_the_run_by_name() -> None:
    """The ranks meet in collectives: one that missed an order would hang all of them."""
    game = play(ranks=TWO)
    effects = game.lost(RankOrdered, "dead")
    assert effects == [Fail("trainer-1 did not take an order: dead")]


def order(index: int, what: RankOrder, step: int = 0, **fields: object) -> RankOrdered:
    return RankOrdered(index=index, order=what, step=step, **fields)  # type: ignore[arg-type]


def test_a_following_rank_fetches_checks_and_trains_as_it_is_told() -> None:
    game = follow()
    game.receive(order(0, RankOrder.EXPORT), "trainer-0")
    assert game.take(ExportVersion).version == 0
    game.receive(order(1, RankOrder.ASK), "trainer-0")
    requested = game.requested()
    assert (requested.rank, requested.world_size) == (1, 2)
    game.answer(batch(0))
    game.check({"b0": "C1"}, oldest=3)
    found = game.take(PartChecked)
    assert (found.rank, found.group_ids, found.oldest) == (1, ("b0",), {"a0": 3})
    game.receive(order(2, RankOrder.ASK, attempt=1), "trainer-0")
    game.answer(batch(0, ("a", "c")))
    game.check()
    assert game.take(PartChecked).attempt == 1
    game.receive(order(3, RankOrder.TRAIN), "trainer-0")
    assert game.take(TrainBatch).batch.group_ids == ("a0", "c0")
    game.receive(order(4, RankOrder.SAVE, 1), "trainer-0")
    assert game.take(SaveCheckpoint).step == 1
    game.receive(order(5, RankOrder.SCORE, 1), "trainer-0")
    assert game.has(ScoreTokens)


def test_a_gap_in_the_orders_ends_a_following_rank() -> None:
    game = follow()
    effects = game.receive(order(1, RankOrder.ASK), "trainer-0")
    assert effects == [Fail("order 1 came after 0 orders: a gap")]


def test_a_following_rank_drains_only_when_nothing_more_is_asked_of_it() -> None:
    """Rank 0 may still need it for the checkpoint that the drain itself makes."""
    game = follow()
    game.ask(Drain(deadline_s=30.0))
    assert not game.has(Drained)
    game.receive(order(0, RankOrder.SAVE, 1), "trainer-0")
    work = game.take(SaveCheckpoint)
    game.receive(order(1, RankOrder.FINISH, 1), "trainer-0")
    assert not game.has(Drained)
    game.feed(WorkDone(work.key, None))
    assert game.has(Drained)


def test_a_following_rank_sends_askers_to_rank_0() -> None:
    game = follow()
    game.ask(ScoreRows(version=0, rows=()), "publisher")
    assert "follows trainer-0, ask there" in game.take(Refused).reason


def test_a_following_rank_asks_a_restarted_buffer_again() -> None:
    game = follow()
    game.receive(order(0, RankOrder.ASK), "trainer-0")
    old = game.take(Ask)
    game.receive(PeerRestarted(actor="buffer", incarnation=1), "supervisor")
    game.feed(Unanswered(old.key, "buffer", "dead"))
    game.bring(0)
    assert game.has(PartChecked)
