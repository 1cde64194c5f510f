"""Contract C2 at the door: routes are replayed as they are, so they must be an engine's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.trainer.kit import batch_of, group, routed, trajectory
from unit.trainer.test_door import RULES, mutant_of

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.routes import RoutesShape
from milepost.actors.seal import sealed
from milepost.actors.trainer.door import check_batch, faults
from milepost.messages.trajectory import Trajectory

SHAPE = RoutesShape(num_layers=3, experts_per_token=2, num_experts=8)
REPLAYED = replace(RULES, model=replace(RULES.model, routes=SHAPE), routes=SHAPE)
GOOD = routed(trajectory("g", 1, version=2), SHAPE)


def changed(place: tuple[int, int, int], expert: int) -> Trajectory:
    """One expert of one token is another one; under a seal of its own, so that C2 must find it."""
    chosen = from_bulk(GOOD.routes).copy() if GOOD.routes else None
    assert chosen is not None
    chosen[place] = expert
    return sealed(msgspec.structs.replace(GOOD, routes=to_bulk(chosen)))


def told(row: Trajectory) -> list[str]:
    return list(faults(row, REPLAYED))


def other_expert(place: tuple[int, int]) -> int:
    assert GOOD.routes is not None
    taken = set(from_bulk(GOOD.routes)[place].tolist())
    return next(expert for expert in range(8) if expert not in taken)


def test_a_row_with_its_routes_is_let_in() -> None:
    assert told(GOOD) == []


@pytest.mark.parametrize(
    ("position", "turn", "where"), [(0, 0, "[0, 8)"), (7, 0, "[0, 8)"), (8, 1, "[8, 14)")]
)
def test_another_expert_is_refused_by_the_turn_that_vouched_for_it(
    position: int, turn: int, where: str
) -> None:
    """It is an expert that a router could have chosen: only the hash can tell."""
    (fault,) = told(changed((position, 1, 0), other_expert((position, 1))))
    assert fault.startswith(f"C2 same routes: routes of positions {where} hash to")
    assert f"turn {turn} says" in fault


def test_an_expert_that_does_not_exist_is_refused_by_its_position() -> None:
    assert "C2 same routes: position 9 goes to expert 8 in mixture layer 2, there are 8" in told(
        changed((9, 2, 1), 8)
    )


def test_an_expert_chosen_twice_is_refused_by_its_position() -> None:
    assert GOOD.routes is not None
    twin = int(from_bulk(GOOD.routes)[4, 0, 0])
    found = told(changed((4, 0, 1), twin))
    assert f"C2 same routes: position 4 goes to experts [{twin}, {twin}] in mixture layer 0" in str(
        found
    )


def test_negative_experts_are_refused() -> None:
    many = RoutesShape(num_layers=1, experts_per_token=2, num_experts=300)
    row = routed(trajectory("g", 1, version=2), many, np.full((14, 1, 2), [[-1, 7]]))
    found = list(faults(row, replace(REPLAYED, routes=many)))
    assert found == [
        "C2 same routes: position 0 goes to expert -1 in mixture layer 0, there are 300"
    ]


def of_shape(*sizes: int, dtype: str = "uint8") -> Trajectory:
    return sealed(msgspec.structs.replace(GOOD, routes=to_bulk(np.zeros(sizes, dtype))))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (msgspec.structs.replace(GOOD, routes=None), r"no routes, uint8 (14, 3, 2) are expected"),
        (of_shape(15, 3, 2), r"routes as uint8 (15, 3, 2), uint8 (14, 3, 2) are expected"),
        (of_shape(14, 3, 4), r"routes as uint8 (14, 3, 4)"),
        (of_shape(14, 3, 2, dtype="int16"), r"routes as int16 (14, 3, 2)"),
        (trajectory("g", 1, version=2), "no routes"),
    ],
)
def test_routes_of_another_form_are_refused(row: Trajectory, what: str) -> None:
    """Without this, a row whose engine told none would go through experts of its own."""
    assert any(fault.startswith(f"C2 same routes: {what}") for fault in told(row))


def test_a_turn_that_vouches_for_nothing_is_refused() -> None:
    first, second = GOOD.turns
    row = sealed(
        msgspec.structs.replace(
            GOOD, turns=(first, msgspec.structs.replace(second, routes_hash=""))
        )
    )
    (fault,) = told(row)
    assert fault.endswith("turn 1 says nothing")


def test_routes_that_no_turn_vouches_for_are_refused() -> None:
    """A row of a session ends with a reply; whatever lies behind it has no witness."""
    (first, _) = GOOD.turns
    found = told(sealed(msgspec.structs.replace(GOOD, turns=(first,))))
    assert any("do not vouch for all routes of 15 tokens" in fault for fault in found)


@given(st.data())
def test_no_field_of_a_row_with_routes_changes_without_being_found(data: st.DataObject) -> None:
    """Routes and their hashes, too: any bit of them."""
    one, two = (routed(row, SHAPE) for row in group("g", (0.0, 1.0)))
    mutant = mutant_of(two, data.draw)
    if mutant == two:
        return
    assert check_batch(batch_of([[one, mutant]]), REPLAYED).refusals, "let in"


def test_without_replay_nobody_asks_for_routes() -> None:
    row: Any = trajectory("g", 1, version=2)
    assert list(faults(row, RULES)) == []
