"""The mailbox alone, fed with frames by hand: what no well-behaved network shows in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.messages.bus.delivery import Delivery, Kind, pack_delivery, unpack_delivery
from milepost.messages.bus.host import Host
from milepost.messages.bus.mailbox import Mailbox
from milepost.messages.bus.memory import MemoryNetwork, MemoryTransport
from milepost.messages.bus.replies import Replies
from milepost.messages.bus.transport import Frames
from milepost.messages.envelope import Header, pack_header
from milepost.messages.limits import BusLimits

ROUTE = b"a/0/x"


class Recorder(MemoryTransport):
    """Keeps what is sent back."""

    def __init__(self) -> None:
        super().__init__(MemoryNetwork("b"), "b")
        self.back: list[Delivery] = []

    def send_back(self, route: bytes, frames: Frames) -> bool:
        assert route == ROUTE
        self.back.append(unpack_delivery(frames[0]))
        return True


@dataclass
class Scene:
    transport: Recorder = field(default_factory=Recorder)
    now: float = 100.0

    def __post_init__(self) -> None:
        host = Host(
            name="b",
            incarnation=1,
            run_id="r",
            limits=BusLimits(),
            transport=self.transport,
            clock=lambda: self.now,
            wake=lambda _: None,
            flush_soon=lambda: None,
            released=lambda _: None,
            peer_restarted=lambda _: None,
        )
        self.mailbox = Mailbox(host, Replies(host), lambda: None)

    def send(self, sequence: int, base: int, kind: Kind = Kind.TELL) -> None:
        """A message as the sender at `a` makes it."""
        delivery = pack_delivery(kind, 0, base, sequence, 0, 0, 1000)
        header = pack_header(Header(1, 0, "Begin", sequence, 0, "a", 0, sequence, "r", 1))
        self.mailbox.on_frames(ROUTE, [delivery, header, b"\x80"])

    def control(self, kind: Kind, *, base: int, last: int, argument: int = 0) -> None:
        frame = pack_delivery(kind, 0, base, last, 0, 0, argument)
        self.mailbox.on_frames(ROUTE, [frame])

    def take(self) -> list[int]:
        """Everything there, by number."""
        taken = []
        while (entry := self.mailbox.head()) is not None:
            self.mailbox.take(entry)
            taken.append(entry.header.sequence)
        self.mailbox.flush()
        return taken


def test_a_new_incarnation_does_not_wait_for_what_the_old_one_had_taken() -> None:
    """The first frame it sees is old: 5 to 7 were taken before it lived, 8 was lost with its pipe.

    A flood over kill -9 stood still for ever where this was forgotten.
    """
    scene = Scene()
    scene.send(9, base=5)
    assert scene.transport.back[-1].kind is Kind.ACK
    assert (scene.transport.back[-1].received, scene.transport.back[-1].argument) == (4, 9)
    for sequence in (8, 9, 10):
        scene.send(sequence, base=8)
    assert scene.take() == [8, 9, 10]
    assert (scene.transport.back[-1].received, scene.transport.back[-1].taken) == (10, 10)


def test_a_hole_is_reported_once_until_it_is_filled() -> None:
    scene = Scene()
    scene.send(1, base=1)
    for sequence in (3, 4, 5):
        scene.send(sequence, base=1)
    told = [one for one in scene.transport.back if one.argument]
    assert [(one.received, one.argument) for one in told] == [(1, 3)]
    for sequence in (2, 3, 4, 5):
        scene.send(sequence, base=2)
    assert scene.take() == [1, 2, 3, 4, 5]


def test_a_probe_says_what_to_send_again() -> None:
    scene = Scene()
    scene.send(1, base=1)
    scene.control(Kind.PROBE, base=1, last=4)
    answer = scene.transport.back[-1]
    assert (answer.kind, answer.received, answer.taken, answer.argument) == (Kind.ACK, 1, 0, 4)


def test_a_probe_of_a_stranger_tells_the_incarnation_that_lives_here() -> None:
    """A peer that owes us answers for the incarnation before us learns so at once."""
    scene = Scene()
    scene.control(Kind.PROBE, base=7, last=9)
    answer = scene.transport.back[-1]
    assert (answer.kind, answer.incarnation, answer.received) == (Kind.ACK, 1, 0)
    assert len(scene.mailbox.sources) == 0


def test_skipped_messages_count_as_taken_wherever_they_were() -> None:
    """Not arrived, waiting in the inbox, taken already."""
    scene = Scene()
    for sequence in (1, 2, 3):
        scene.send(sequence, base=1)
    scene.control(Kind.SKIP, base=1, last=5, argument=2)
    scene.send(4, base=1)
    scene.control(Kind.SKIP, base=1, last=5, argument=5)
    scene.send(6, base=1)
    assert scene.take() == [1, 3, 4, 6]
    scene.control(Kind.SKIP, base=1, last=6, argument=3)
    scene.mailbox.flush()
    assert (scene.transport.back[-1].received, scene.transport.back[-1].taken) == (6, 6)
    assert scene.mailbox.num_skipped == 1


def test_repeats_are_dropped_and_acknowledged_again() -> None:
    """The acknowledgement may be what was lost."""
    scene = Scene()
    scene.send(1, base=1)
    assert scene.take() == [1]
    scene.transport.back.clear()
    scene.send(1, base=1)
    scene.mailbox.flush()
    assert scene.take() == []
    assert scene.transport.back[-1].taken == 1
    assert scene.mailbox.num_duplicates == 1


def test_a_question_is_acknowledged_by_its_answer_or_after_a_moment() -> None:
    scene = Scene()
    scene.send(1, base=1, kind=Kind.ASK)
    head = scene.mailbox.head()
    assert head is not None
    scene.mailbox.take(head)
    assert scene.transport.back == []
    assert scene.now < scene.mailbox.due < scene.now + 0.1
    scene.mailbox.tick(scene.mailbox.due)
    assert scene.transport.back[-1].taken == 1
