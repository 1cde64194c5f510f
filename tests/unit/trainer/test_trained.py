"""The list of trained groups does not grow with the run: the ledger has the names for good."""

from __future__ import annotations

from unit.trainer.play import play

from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import SaveCheckpoint
from milepost.messages.trainer import LedgerWritten


def test_names_go_when_the_ledger_has_them_and_the_count_stays() -> None:
    trained = TrainedGroups()
    for version in (1, 2, 3):
        trained.add(version, (f"a{version}", f"b{version}"))
    trained.written(2)
    assert (len(trained), trained.num_before, trained.names) == (6, 4, ("a3", "b3"))
    trained.written(1)
    assert len(trained) == 6
    trained.written(9)
    assert (len(trained), trained.names) == (6, ())


def test_a_checkpoint_names_only_what_the_ledger_may_not_have() -> None:
    """meta.json of a long run would otherwise be megabytes, written again at each checkpoint."""
    game = play(checkpoint_every_steps=3, steps=9)
    game.step(0)
    game.step(1)
    game.receive(LedgerWritten(version=1), "rollout")
    game.step(2)
    work = game.take(SaveCheckpoint)
    assert work.trained_before == 2
    assert work.trained_group_ids == ("a1", "b1", "a2", "b2")
    assert game.core.statistics()["groups_trained"] == 6
