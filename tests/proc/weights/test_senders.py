"""Several senders of one version, as a trainer with pipeline stages would have them.

Each stage is the sender of meetings of its own; engines go through them in the order of the stages.
A group of one sender and all engines waits for nobody else, so arrival in any order is the same.
Engines that go in different orders wait for each other for ever: that case must fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice, permutations
from threading import Event

import numpy as np
import pytest

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.weights.broadcast import (
    BroadcastFailed,
    Meeting,
    Rendezvous,
    receive_buckets,
    send_buckets,
)
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec

pytestmark = pytest.mark.timeout(120)
BUCKETS = 2


def tensors_of(stage: int) -> list[Bulk]:
    """One tensor for each bucket of a stage."""
    return [
        to_bulk(np.full(5 + stage, 10 * stage + number, np.float32)) for number in range(BUCKETS)
    ]


def specs_of(stage: int) -> list[list[TensorSpec]]:
    return [
        [TensorSpec(name=f"stage.{stage}.{number}", dtype="float32", shape=(5 + stage,))]
        for number in range(BUCKETS)
    ]


def meeting(place: Rendezvous, stage: int, rank: int, engines: int, deadline_s: float) -> Meeting:
    return Meeting(
        rendezvous=place.address,
        group=f"stage {stage}",
        rank=rank,
        world_size=engines + 1,
        deadline_s=deadline_s,
        device="cpu",
    )


def publish(
    senders: int,
    orders: Sequence[Sequence[int]],
    arrival: Sequence[int],
    deadline_s: float = 60.0,
) -> list[dict[str, float]]:
    """Send one version, and give what each engine has afterwards.

    Args:
        senders: stages.
        orders: for each engine, the stages in the order of its meetings.
        arrival: members, senders first, in the order in which they begin; the next one begins when
            the one before is on its way.
        deadline_s: of every wait.

    Raises:
        BroadcastFailed: somebody waited for longer.
    """
    places = [Rendezvous() for _ in range(senders)]
    engines = len(orders)
    staged: list[dict[str, float]] = [{} for _ in orders]

    def send(stage: int) -> None:
        at = meeting(places[stage], stage, 0, engines, deadline_s)
        send_buckets(at, ([bulk] for bulk in tensors_of(stage)))

    def stage_tensors(engine: int, names: tuple[str, ...], tensors: tuple[Bulk, ...]) -> None:
        for name, tensor in zip(names, tensors, strict=True):
            staged[engine][name] = float(from_bulk(tensor)[0])

    def receive(engine: int) -> None:
        for stage in orders[engine]:
            at = meeting(places[stage], stage, engine + 1, engines, deadline_s)
            receive_buckets(at, specs_of(stage), partial(stage_tensors, engine))

    members = [
        *(partial(send, stage) for stage in range(senders)),
        *(partial(receive, engine) for engine in range(engines)),
    ]
    with ThreadPoolExecutor(len(members)) as threads:
        running: list[Future[None]] = []
        for number in arrival:
            begun = Event()
            running.append(threads.submit(_begin, begun, members[number]))
            assert begun.wait(60.0)
        for future in running:
            future.result()
    return staged


def _begin(begun: Event, act: partial[None]) -> None:
    begun.set()
    act()


def expected(senders: int) -> dict[str, float]:
    return {
        f"stage.{stage}.{number}": 10.0 * stage + number
        for stage in range(senders)
        for number in range(BUCKETS)
    }


@pytest.mark.parametrize(("senders", "engines"), [(2, 2), (3, 1)])
def test_any_order_of_arrival_ends_with_every_tensor_on_every_engine(
    senders: int, engines: int
) -> None:
    """All 24 orders of four members."""
    orders = [range(senders)] * engines
    for arrival in permutations(range(senders + engines)):
        staged = publish(senders, orders, arrival)
        assert staged == [expected(senders)] * engines, arrival


def test_three_senders_and_two_engines_in_some_orders() -> None:
    orders = [range(3)] * 2
    for arrival in islice(permutations(range(5)), 0, None, 13):
        assert publish(3, orders, arrival) == [expected(3)] * 2, arrival


def test_engines_that_go_through_the_stages_in_opposite_orders_are_told_apart_by_a_deadline() -> (
    None
):
    """What the fixed order is for: each waits in a meeting that the other comes to later."""
    with pytest.raises(BroadcastFailed, match=r"meeting stage \d of 3 members"):
        publish(2, [(0, 1), (1, 0)], (0, 1, 2, 3), deadline_s=2.0)
