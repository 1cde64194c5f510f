"""What the buffer does when the trainer's door refuses groups of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from sim.rows import trajectory

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.effects import Effect, Received, Reply, Request, Tell, WorkDone
from milepost.messages.buffer import (
    Batch,
    BatchExhausted,
    BatchRequested,
    GroupOpened,
    GroupsRefused,
    IssueEnded,
    StepTrained,
    TrajectoryFinished,
)
from milepost.messages.rollout import CreditsGranted
from milepost.messages.shared import VersionSpan
from milepost.messages.supervisor import Refused
from milepost.messages.trainer import VersionPublished


class Play:
    """A buffer of batches of two groups of two; its journal writes at once."""

    def __init__(self, **fields: Any) -> None:
        settings: dict[str, Any] = {
            "steps": 2,
            "groups_per_step": 2,
            "group_size": 2,
            "num_minibatches": 2,
            "groups_max": 4,
            "imports": False,
            "pace": None,
            "publish_every": 1,
            "staleness_max": None,
            "late": "drop",
            "filters": (),
            "filtered_in_a_row_max": 0,
            "sync": False,
            "over_sampled": 0,
            "partial": False,
            "retries_unused": False,
            "journal": False,
            "success_metric": "solved",
            "checkpoints_named": 2,
        }
        self.buffer = Buffer.of(BufferSettings(**(settings | fields)), Fates(), ())
        self.replies: dict[Request, Any] = {}
        self.granted = 0
        self.marks: list[Any] = []
        self._num_asked = 0
        self.feed(self.buffer.start(0.0))
        self.receive(VersionPublished(version=0))

    def feed(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request not in self.replies, "one answer"
                    self.replies[effect.request] = effect.message
                case Tell(message=CreditsGranted(samples_total=total)):
                    self.granted = total // 2
                case WriteMarks() | KeepGroup():
                    self.marks += getattr(effect, "marks", ())
                    self.feed(self.buffer.handle(WorkDone(effect.key, None), 0.0))
                case _:
                    pass

    def receive(self, message: Any, request: Request | None = None) -> None:
        self.feed(self.buffer.handle(Received("somebody", message, request), 0.0))
        self.buffer.validate()

    def store(self, *groups: str, version: int = 0) -> None:
        """These groups become complete."""
        spans = (VersionSpan(start=1, end=4, version=version),)
        for group in groups:
            self.receive(GroupOpened(group_id=group, prompt_id="p", size=2))
            for member in range(2):
                row = trajectory(f"{group}.{member}", spans=spans, reward=float(member))
                self.receive(TrajectoryFinished(trajectory=row))

    def ask(self, step: int = 0, rank: int = 0, world_size: int = 1) -> Request:
        self._num_asked += 1
        request = Request(f"trainer-{rank}", self._num_asked)
        wanted = BatchRequested(step=step, rank=rank, world_size=world_size, version=step)
        self.receive(wanted, request)
        return request

    def refuse(self, *groups: str) -> None:
        reasons = ("C1 same tokens: no",) * len(groups)
        self.receive(GroupsRefused(step=0, group_ids=groups, reasons=reasons))


def test_a_batch_out_of_step_is_refused_and_is_no_end_of_the_data() -> None:
    """A trainer that took it for the end would report that its work is done."""
    game = Play(groups_max=8)
    game.store("g0", "g1", "g2", "g3")
    assert isinstance(game.replies[game.ask(0)], Batch)
    answer = game.replies[game.ask(2)]
    assert isinstance(answer, Refused)
    assert answer.reason == "rank 0 asks for the batch of step 2, the next one is 1"
    assert isinstance(game.replies[game.ask(1)], Batch)


def test_a_batch_that_a_former_incarnation_saw_trained_is_never_cut_anew() -> None:
    """Ranks that train different groups in one step sum gradients that belong to no batch."""
    game = Play(groups_max=8)
    game.receive(StepTrained(step=1, version=2, group_ids=("h0", "h1")))
    game.store("g0", "g1")
    answer = game.replies[game.ask(1, rank=1, world_size=2)]
    assert isinstance(answer, Refused)
    assert answer.reason == "rank 1 asks for the batch of step 1, the next one is 2"
    assert isinstance(game.replies[game.ask(2)], Batch)


@pytest.mark.parametrize("journal", [False, True])
def test_another_group_takes_the_place_of_a_refused_one(journal: bool) -> None:  # noqa: FBT001
    """The parts of the ranks were split before; the refused group must be in none of them."""
    game = Play(journal=journal)
    game.store("g0", "g1", "g2")
    first: Batch = game.replies[game.ask()]
    assert first.group_ids == ("g0", "g1")
    game.refuse("g0")
    again: Batch = game.replies[game.ask()]
    assert again.group_ids == ("g1", "g2")
    names = [each.trajectory_id for each in again.trajectories]
    assert names == ["g1.0", "g1.1", "g2.0", "g2.1"]
    assert (again.num_trajectories, again.num_loss_tokens) == (4, 12)
    if journal:
        handed = [mark for mark in game.marks if type(mark).__name__ == "Handed"]
        assert [mark.groups for mark in handed] == [("g0", "g1"), ("g1", "g2")]


def test_a_batch_waits_for_what_replaces_a_refused_group() -> None:
    """Both ranks are answered with the same batch, and not before it is whole."""
    game = Play()
    game.store("g0", "g1")
    for rank in range(2):
        assert game.ask(rank=rank, world_size=2) in game.replies
    game.refuse("g0", "g1")
    waiting = [game.ask(rank=rank, world_size=2) for rank in range(2)]
    game.store("g2")
    assert not any(request in game.replies for request in waiting)
    game.store("g3")
    parts = [game.replies[request] for request in waiting]
    assert [part.group_ids for part in parts] == [("g2", "g3")] * 2
    held = sorted(row.trajectory_id for part in parts for row in part.trajectories)
    assert held == ["g2.0", "g2.1", "g3.0", "g3.1"]


def test_what_grows_old_while_a_refused_group_is_replaced_leaves_the_batch() -> None:
    """No rank has the batch any more: its groups are as in the queue, and so is the limit."""
    game = Play(staleness_max=0)
    game.store("g0", "g1")
    game.ask()
    game.refuse("g0")
    request = game.ask()
    game.receive(VersionPublished(version=1))
    game.store("g2")
    assert request not in game.replies
    assert {name: gone.reason for name, gone in game.buffer.fates.gone.items()} == {
        "g0": "C1 same tokens: no",
        "g1": "stale",
        "g2": "stale",
    }
    game.store("g3", "g4", version=1)
    assert game.replies[request].group_ids == ("g3", "g4")


def test_a_refused_group_frees_a_credit_for_the_one_that_replaces_it() -> None:
    """Without it the last batches of a run would wait for groups that nobody may issue."""
    game = Play(groups_max=2)
    assert game.granted == 2
    game.store("g0", "g1")
    game.ask()
    assert game.granted == 4, "this batch, and room for the last one"
    game.refuse("g0")
    assert game.granted == 5
    game.store("g2")
    game.receive(StepTrained(step=0, version=1, group_ids=("g1", "g2")))
    assert game.granted == 5, "three spent, and the last batch"


def test_a_refusal_that_is_said_twice_counts_once() -> None:
    """The trainer repeats what it cannot know to be heard; a credit is spent once."""
    game = Play()
    game.store("g0", "g1")
    game.ask()
    game.refuse("g0")
    granted = game.granted
    game.refuse("g0")
    assert game.buffer.fates.num_spent == 1
    assert game.granted == granted


def test_a_batch_that_cannot_be_whole_again_is_never_answered_with_less() -> None:
    """A drain: the rollout actor issues no group that could take the refused one's place."""
    game = Play()
    game.store("g0", "g1")
    game.ask()
    game.refuse("g1")
    request = game.ask()
    assert request not in game.replies
    game.receive(IssueEnded(reason="the rollout actor drains"))
    answer = game.replies[request]
    assert isinstance(answer, BatchExhausted)
    assert answer.reason == "the rollout actor drains"
