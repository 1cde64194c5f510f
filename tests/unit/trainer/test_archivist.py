"""A rank's part of the archive: each row with what was computed, each refusal with its cause."""

from __future__ import annotations

import gc
import weakref
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from unit.archive.kit import author
from unit.trainer.kit import (
    TEMPLATE_HASH,
    TOKENIZER_HASH,
    VOCABULARY,
    batch_of,
    digest_of,
    group,
    trajectory,
)
from unit.trainer.play import PLAN

from milepost.actors.archive import hand as hands
from milepost.actors.archive.chain import Chain
from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.layout import Head, Record, Refused, Trained, key_of, read_trained
from milepost.actors.archive.orders import Known, Order
from milepost.actors.arrays import to_bulk
from milepost.actors.routes import RoutesShape
from milepost.actors.trainer.archivist import ArchivedTrainer, TrainerArchivist
from milepost.actors.trainer.door import check_batch
from milepost.actors.trainer.follower import Follower
from milepost.actors.trainer.verdicts import passed
from milepost.actors.trainer.works import BatchVerdict, DoorRules, ModelFacts, StepOutcome
from milepost.configs.run import AlgorithmConfig, ArchiveConfig

RULES = DoorRules(
    sft=False,
    model=ModelFacts(
        vocabulary=VOCABULARY, tokenizer_hash=TOKENIZER_HASH, template_hash=TEMPLATE_HASH
    ),
    version=3,
    digests={version: digest_of(version) for version in range(4)},
    keeps_caches=False,
)
SHAPE = RoutesShape(num_layers=2, experts_per_token=2, num_experts=4)
OUTCOME = StepOutcome(metrics={}, num_tokens=1, train_s=1.0, spread=True)


@pytest.fixture
def archivist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainerArchivist:
    monkeypatch.setattr(hands, "LINGER_S", 0.0)
    hand = ArchiveHand(author(tmp_path, "trainer-0"), ArchiveConfig())
    return TrainerArchivist(hand, AlgorithmConfig())


def written(archivist: TrainerArchivist) -> list[tuple[Record, Head]]:
    """Everything that the archivist had written."""
    archivist.hand.close(60.0)
    chain = Chain(archivist.hand.author.run_folder / "archive" / "trainer-0", "trainer-0")
    found = [(record, head) for _, record, head in chain.records()]
    assert chain.faults == []
    return found


def test_every_row_gets_its_own_log_probs_and_advantage(archivist: TrainerArchivist) -> None:
    """Rows of several minibatches come back in the order of the batch, whatever their lengths."""
    groups = [group("a", (0.0, 1.0)), group("b", (1.0, 0.5))]
    batch = batch_of(groups, step=3, minibatches=2)
    computed = [
        [
            np.full(each.num_sampled_tokens, -1.0 - 10 * at - number, np.float32)
            for number, each in enumerate(members)
        ]
        for at, members in enumerate(groups)
    ]
    archivist.checked(batch, RULES, check_batch(batch, RULES))
    archivist.trained(batch, OUTCOME, computed)
    found = [(record, head) for record, head in written(archivist) if isinstance(head, Trained)]
    rows = [row for members in groups for row in members]
    assert [head.key for _, head in found] == [key_of(row) for row in rows]
    assert [head.step for _, head in found] == [3] * 4
    assert [head.staleness for _, head in found] == [3] * 4
    assert found[0][1].advantage == -found[1][1].advantage < 0
    assert found[0][1].digests == {0: digest_of(0)}
    for (record, head), values in zip(
        found, [each for rows in computed for each in rows], strict=True
    ):
        logprobs = read_trained(record).logprobs
        assert logprobs is not None
        assert array("f", bytes(logprobs.data)).tolist() == values.tolist()
        assert head.contracts["C4"] == "passed"


def test_a_refused_group_is_named_row_by_row_with_every_contract(
    archivist: TrainerArchivist,
) -> None:
    """The sibling that passed says so; the culprit says what the door found."""
    good, bad = group("a", (0.0, 1.0))
    bad = msgspec.structs.replace(bad, reward=0.0)
    batch = batch_of([[good, bad]], step=3)
    verdict = check_batch(batch, RULES)
    assert [refusal.group_id for refusal in verdict.refusals] == ["a"]
    archivist.checked(batch, RULES, verdict)
    heads = [head for _, head in written(archivist) if isinstance(head, Refused)]
    assert [head.trajectory_id for head in heads] == ["a.0", "a.1"]
    assert set(heads[0].contracts.values()) == {"passed", "not applicable"}
    assert heads[1].contracts["seal"].startswith("the row seals to")
    assert heads[1].contracts["C1"] == "passed"


def test_a_step_that_was_given_up_trains_nothing(archivist: TrainerArchivist) -> None:
    """A number was not finite: the weights are those of no version, and nothing may claim one."""
    batch = batch_of([[trajectory("a", 0), trajectory("a", 1)]], step=3)
    outcome = StepOutcome(metrics={}, num_tokens=1, train_s=1.0, spread=True, tripped="loss is nan")
    archivist.checked(batch, RULES, check_batch(batch, RULES))
    archivist.trained(batch, outcome, [[np.zeros(7, np.float32)] * 2])
    assert not [head for _, head in written(archivist) if isinstance(head, Trained)]


def test_the_statistics_of_a_rank_name_the_last_record_of_its_archive(
    archivist: TrainerArchivist,
) -> None:
    """The supervisor writes them down at the end: who makes the chain anew is found by that."""
    batch = batch_of([group("a", (0.0, 1.0))], step=3)
    follower = Follower.of(replace(PLAN, ranks=("trainer-0", "trainer-1")), 1, RULES.model)
    core = ArchivedTrainer(follower, archivist.hand)
    archivist.checked(batch, RULES, check_batch(batch, RULES))
    archivist.trained(batch, OUTCOME, [[np.zeros(7, np.float32)] * 2])
    *_, (last, _), (closing, _) = written(archivist)
    said = core.statistics()["archive"]
    assert isinstance(said, dict)
    assert (said["records"], said["head"]) == (last.sequence + 1, last.digest.hex())
    assert closing.previous == last.digest
    assert core.statistics() == {**follower.statistics(), "archive": said}


def test_what_waits_for_the_disk_keeps_no_array_of_the_batch_but_the_mask() -> None:
    """A disk that stalls must not hold every batch since then, routes and all, in memory."""
    orders: list[Order] = []

    class Waiting:
        def put(self, order: Order) -> None:
            orders.append(order)

    waiting: Any = Waiting()
    routes = np.zeros((1 << 10, 64), np.uint8)
    row = msgspec.structs.replace(trajectory("a.0"), routes=to_bulk(routes, "uint8"))
    computed = [[np.full(row.num_sampled_tokens, -1.0, np.float32)]]
    alive = weakref.ref(routes)
    archivist, batch = TrainerArchivist(waiting, AlgorithmConfig()), batch_of([[row]], step=3)
    archivist.checked(batch, RULES, BatchVerdict((), {}))
    archivist.trained(batch, OUTCOME, computed)
    key = key_of(row)
    del row, routes, batch
    gc.collect()
    assert alive() is None
    (order,) = orders
    assert order.num_bytes < 1 << 12
    ((head, _),) = order.make(Known(None))
    assert isinstance(head, Trained)
    assert head.key == key


@pytest.mark.parametrize(
    ("is_mixture", "replayed", "verdict"),
    [(False, None, "not applicable"), (True, None, "not checked"), (True, SHAPE, "passed")],
)
def test_what_is_said_of_routes_tells_a_dense_model_from_one_whose_routes_nobody_looked_at(
    *, is_mixture: bool, replayed: RoutesShape | None, verdict: str
) -> None:
    """A dense model has no contract C2 to break; a mixture without replay may break it unseen."""
    rules = replace(RULES, model=replace(RULES.model, is_mixture=is_mixture), routes=replayed)
    assert passed(rules)["C2"] == verdict
