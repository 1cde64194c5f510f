"""Payloads made in shared memory, in any order of events, beside a model that counts naively."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from unit.messages.house import MIB, House

from milepost.messages.bus.borrowing import Borrower
from milepost.messages.layout import Place

SIZES = (MIB // 2, MIB, 2 * MIB)
BYTES_MAX = 8 * MIB
PEERS = ("b", "c")


@dataclass
class Payload:
    """One piece of memory as its maker and its receivers see it."""

    value: int
    views: list[memoryview]
    """Here; any of them keeps it."""
    segment: str
    size: int
    doomed: bool = False


@dataclass
class Message:
    to: str
    payloads: list[Payload]
    places: list[Place]
    read: list[memoryview] = field(default_factory=list)
    """What the receiver has mapped; empty before it opened the message."""
    acknowledged: bool = False
    given_back: bool = False


class Lives(RuleBasedStateMachine):
    """What nobody may overwrite is looked at after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="milepost-test-"))
        self.house = House(self.folder, BYTES_MAX)
        self.payloads: list[Payload] = []
        self.messages: dict[int, Message] = {}
        self.strays: list[tuple[int, memoryview]] = []
        """Receivers that were given up on, and read on."""
        self.num_values = 0
        self.num_messages = 0

    # ---- the slow model ------------------------------------------------------------------

    def loans(self, payload: Payload) -> int:
        return sum(payload in message.payloads for message in self.messages.values())

    def in_use(self) -> list[Payload]:
        return [one for one in self.payloads if one.views or self.loans(one)]

    def end(self, number: int, *, doomed: bool) -> None:
        message = self.messages.pop(number)
        for payload in message.payloads:
            payload.doomed = payload.doomed or doomed
        if doomed:
            values = [payload.value for payload in message.payloads]
            self.strays += zip(values, message.read, strict=False)

    def some(self, data: st.DataObject, among: list[int]) -> int:
        return data.draw(st.sampled_from(among))

    # ---- what may happen -----------------------------------------------------------------

    @rule(size=st.sampled_from(SIZES))
    def make(self, size: int) -> None:
        used = sum(one.size for one in self.in_use())
        elsewhere = self.house.allotments.num_elsewhere
        before = {one.name for one in self.house.segments.free}
        self.num_values = self.num_values % 250 + 1
        view = self.house.make(self.num_values, size)
        if used + size > BYTES_MAX:
            assert self.house.allotments.num_elsewhere == elsewhere + 1
            return
        assert self.house.allotments.num_elsewhere == elsewhere
        found = self.house.allotments.find(view)
        assert found is not None
        segment = found[0]
        needed = {one.segment for one in self.in_use()}
        assert segment.name not in needed, "given while somebody needs it"
        assert segment.name in before or not any(
            segment.name == one.segment for one in self.payloads
        )
        self.payloads = self.in_use()
        self.payloads.append(Payload(self.num_values, [view], segment.name, segment.size))

    @precondition(lambda self: any(one.views for one in self.payloads))
    @rule(data=st.data())
    def refer_once_more(self, data: st.DataObject) -> None:
        held = [one for one in self.payloads if one.views]
        payload = held[self.some(data, list(range(len(held))))]
        payload.views.append(payload.views[-1][1:-1])

    @precondition(lambda self: any(one.views for one in self.payloads))
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        held = [one for one in self.payloads if one.views]
        payload = held[self.some(data, list(range(len(held))))]
        payload.views.pop(0)

    @precondition(lambda self: any(one.views and not one.doomed for one in self.payloads))
    @rule(data=st.data(), to=st.sampled_from(PEERS))
    def send(self, data: st.DataObject, to: str) -> None:
        fit = [one for one in self.payloads if one.views and not one.doomed]
        chosen = data.draw(st.sets(st.sampled_from(range(len(fit))), min_size=1, max_size=2))
        payloads = [fit[at] for at in sorted(chosen)]
        self.num_messages += 1
        loan = self.house.lend(self.num_messages, *(one.views[0] for one in payloads), to=to)
        assert loan.fresh is None
        self.messages[self.num_messages] = Message(to, payloads, loan.places)

    @precondition(lambda self: any(not one.read for one in self.messages.values()))
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        fit = [at for at, one in self.messages.items() if not (one.read or one.given_back)]
        if fit:
            message = self.messages[self.some(data, fit)]
            if not message.acknowledged:
                with Borrower("run", lambda _: None, self.folder).reading(1) as opener:
                    message.read = [opener(one.segment, one.offset, 1000) for one in message.places]

    @precondition(lambda self: any(not one.acknowledged for one in self.messages.values()))
    @rule(data=st.data(), taken=st.booleans())
    def settle(self, data: st.DataObject, taken: bool) -> None:  # noqa: FBT001
        fit = [at for at, one in self.messages.items() if not one.acknowledged]
        number = self.some(data, fit)
        message = self.messages[number]
        self.house.lender.settle(number, taken=taken)
        message.acknowledged = True
        if not taken or message.given_back:
            self.end(number, doomed=not taken)

    @precondition(lambda self: any(not one.given_back for one in self.messages.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        fit = [at for at, one in self.messages.items() if not one.given_back]
        number = self.some(data, fit)
        message = self.messages[number]
        message.read.clear()
        message.given_back = True
        self.house.lender.give_back(number)
        if message.acknowledged:
            self.end(number, doomed=False)

    @rule(peer=st.sampled_from(PEERS))
    def restart(self, peer: str) -> None:
        self.house.lender.peer_restarted(peer)
        self.lost(lambda message: message.to == peer)

    @rule()
    def leases_end(self) -> None:
        self.house.now += 101.0
        self.house.lender.tick(self.house.now)
        self.lost(lambda _: True)

    def lost(self, which: Callable[[Message], bool]) -> None:
        for number, message in list(self.messages.items()):
            if message.acknowledged and which(message):
                self.end(number, doomed=True)

    # ---- what must hold ------------------------------------------------------------------

    @invariant()
    def nobody_sees_other_bytes(self) -> None:
        for payload in self.payloads:
            assert all(view[0] == view[-1] == payload.value for view in payload.views)
        for message in self.messages.values():
            for payload, place in zip(message.payloads, message.places, strict=True):
                if not message.acknowledged:
                    with (self.folder / place.segment).open("rb") as file:
                        file.seek(place.offset)
                        assert set(file.read(100)) == {payload.value}
            for payload, view in zip(message.payloads, message.read, strict=False):
                assert set(view) == {payload.value}
        assert all(set(view) == {value} for value, view in self.strays)

    @invariant()
    def names_and_figures_are_those_of_the_model(self) -> None:
        self.house.allotments.collect()
        used = self.in_use()
        free = {one.name for one in self.house.segments.free}
        named = {one.segment for one in used if self.loans(one) or not one.doomed}
        assert not free & named
        assert self.house.names() == free | named
        assert not free & {one.segment for one in self.payloads if one.doomed}
        assert self.house.segments.held_bytes == sum(one.size for one in used)
        assert set(self.house.lender.loans) == set(self.messages)

    def teardown(self) -> None:
        self.house.lender.close()
        assert self.house.names() == set()
        for payload in self.payloads:
            assert all(view[0] == payload.value for view in payload.views)
        shutil.rmtree(self.folder)


def test_any_order_of_events_keeps_every_payload_as_it_was_written() -> None:
    """Makers, receivers, losses, restarts and leases over a few segments."""
    run_state_machine_as_test(
        Lives,
        settings=settings(max_examples=30, stateful_step_count=30, deadline=None),
    )
