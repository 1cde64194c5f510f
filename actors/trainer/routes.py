"""Routes that a row brings to the trainer's door: contract C2.

They are replayed as they are, so whatever could not have come from the engine's router is found
here: routes of other tokens, experts that do not exist, one expert twice for one token, a byte that
changed on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from milepost.actors.arrays import from_bulk
from milepost.actors.routes import RoutesShape, routes_hashes, routes_start
from milepost.messages.bulk import Bulk
from milepost.messages.trajectory import Trajectory

ROUTES: Final = "C2 same routes"


def route_faults(trajectory: Trajectory, shape: RoutesShape | None) -> Iterator[str]:
    """Every fault of the routes of one row.

    Args:
        trajectory: its arrays have the lengths of one row.
        shape: of the routes that are replayed; None: none are, and none are looked at.
    """
    if shape is None:
        return
    num_tokens = trajectory.token_ids.shape[0] - 1
    if fault := shape.fault(trajectory.routes, num_tokens):
        yield f"{ROUTES}: {fault}"
        return
    assert trajectory.routes is not None, "routes that are missing have a fault"
    chosen = from_bulk(trajectory.routes)
    yield from _choice_faults(chosen, shape)
    yield from _hash_faults(trajectory, trajectory.routes)


def _choice_faults(chosen: NDArray[Any], shape: RoutesShape) -> Iterator[str]:
    """No router of the model could have chosen so."""
    if int(chosen.max()) >= shape.num_experts or int(chosen.min()) < 0:
        strange = (chosen >= shape.num_experts) | (chosen < 0)
        where, layer, rank = (int(axis) for axis in np.argwhere(strange)[0])
        yield (
            f"{ROUTES}: position {where} goes to expert {int(chosen[where, layer, rank])} in "
            f"mixture layer {layer}, there are {shape.num_experts}"
        )
    ordered = np.sort(chosen, axis=-1)
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
    if twice.any():
        where, layer = (int(axis) for axis in np.argwhere(twice)[0])
        yield (
            f"{ROUTES}: position {where} goes to experts {chosen[where, layer].tolist()} in "
            f"mixture layer {layer}, one of them twice"
        )


def _hash_faults(trajectory: Trajectory, routes: Bulk) -> Iterator[str]:
    """Each turn vouches for the routes that it added, and together they do for all of them."""
    ends = [turn.end for turn in trajectory.turns]
    length = trajectory.token_ids.shape[0]
    if not ends or ends != sorted(ends) or ends[0] < 1 or ends[-1] != length:
        yield f"{ROUTES}: turns that end at {ends} do not vouch for all routes of {length} tokens"
        return
    start = 0
    for number, found in enumerate(routes_hashes(routes, ends)):
        turn = trajectory.turns[number]
        if found != turn.routes_hash:
            said = turn.routes_hash or "nothing"
            yield (
                f"{ROUTES}: routes of positions [{start}, {turn.end - 1}) hash to {found}, turn "
                f"{number} says {said}"
            )
            return
        start = routes_start(turn.end)
