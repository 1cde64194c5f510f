"""Messages and results as bytes and back, without pickle."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from milepost.actors.agent.core import AgentCore
from milepost.actors.effects import Request
from milepost.actors.recorder.content import (
    NotRecordable,
    address_of,
    content_of,
    digest_of_content,
    value_of,
)
from milepost.actors.recorder.describing import facts_of, names_of, reader_of
from milepost.actors.recorder.lines import Decision, Line, decode_lines, encode_lines
from milepost.actors.recorder.payloads import Payloads, read_payloads
from milepost.actors.recorder.reading import read_lines
from milepost.actors.trainer.works import BatchVerdict, Refusal, StepOutcome
from milepost.messages.buffer import GroupOpened
from milepost.messages.bulk import Bulk
from milepost.messages.examples import examples
from milepost.messages.publisher import BucketReady
from milepost.messages.schema import fingerprint
from milepost.messages.shared import Message, Status


@pytest.mark.parametrize("message", examples(), ids=lambda each: type(each).__name__)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    content = content_of(message)
    back = value_of(content)
    assert type(back) is type(message)
    assert content_of(back) == content
    if not isinstance(message, BucketReady) and "tensors" not in message.__struct_fields__:
        assert back == message


def test_results_of_work_keep_their_types() -> None:
    """A tuple that came back as a list, an enum as a text: a core would decide otherwise."""
    values: list[Any] = [
        StepOutcome({"train/loss": float("inf")}, 3, 0.5, spread=True),
        BatchVerdict((Refusal("g1", "stale"),), {"g1": 3}),
        (1, [2, (3,)], {"a": {4}, 5: frozenset({"b"})}, None, True, b"bytes"),
        (Status.COMPLETED, Path("/a/b"), Request("rollout", 7)),
        [-(1 << 63), (1 << 64) - 1, 1 << 64, -(10**400)],
    ]
    for value in values:
        back = value_of(content_of(value))
        assert back == value
        assert type(back) is type(value)
    array = value_of(content_of(np.arange(6, dtype=np.int32).reshape(2, 3)))
    assert array.dtype == np.int32
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_order_of_a_set_does_not_change_its_content() -> None:
    """Each process has another order of hashes; a replay runs in another process."""
    names = [f"g{number}" for number in range(50)]
    grown = set(names) | {f"h{number}" for number in range(500)}
    assert list(grown & set(names)) != names, "the sets are built in other orders"
    assert content_of(set(names)) == content_of(grown - {f"h{number}" for number in range(500)})


def test_reading_makes_nothing_but_plain_data_of_ours() -> None:
    for name in ("os:system", "subprocess:Popen", "milepost.actors.agent.core:AgentCore"):
        content = msgspec.msgpack.encode(["struct", name, {}])
        with pytest.raises(NotRecordable, match=r"no type of ours|no plain data"):
            value_of(content)


def test_what_is_no_plain_data_is_refused_by_name_or_counts_by_its_type() -> None:
    core = AgentCore("agent-0", episodes_max=1, alive_every_s=None)
    with pytest.raises(NotRecordable, match="AgentCore"):
        content_of((1, core))
    assert digest_of_content((1, core)) != digest_of_content((2, core))


@dataclass
class Node:
    """A tree whose nodes know their parents."""

    parent: Node | None = None
    child: Node | None = None


def test_a_value_without_an_end_is_cut() -> None:
    root = Node()
    root.child = Node(parent=root)
    assert digest_of_content(root)
    with pytest.raises(NotRecordable):
        content_of(root)


def test_weights_are_known_by_their_shapes() -> None:
    """A recording is no second copy of every checkpoint."""

    def bucket(byte: bytes) -> BucketReady:
        tensor = Bulk("uint8", (1000,), byte * 1000)
        return BucketReady(version=1, index=0, names=("a",), tensors=(tensor,))

    content = content_of(bucket(b"x"))
    assert len(content) < 500
    assert content == content_of(bucket(b"y"))
    assert digest_of_content(bucket(b"x")) == digest_of_content(bucket(b"y"))
    assert value_of(content).tensors[0].shape == (1000,)


@pytest.mark.parametrize("message", examples(), ids=lambda each: type(each).__name__)
def test_facts_are_few_and_plain_and_hold_no_secret(message: Message) -> None:
    """They go into a file and onto a screen: no conversation, no address with its key."""
    facts = facts_of(message)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts)) == facts
    assert not {"address", "addresses", "messages", "prompt", "token_ids", "text"} & set(facts)


@pytest.mark.parametrize("message", examples(), ids=lambda each: type(each).__name__)
def test_facts_of_own_types_are_the_same_with_and_without_names(message: Message) -> None:
    """The writer leaves the names out where every reader knows them."""
    line = Line(
        0,
        0.0,
        0.0,
        "received",
        type=type(message).__name__,
        facts=reader_of(type(message))(message),
    )
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(facts_of(message)))
    assert decode_lines(encode_lines([line]), names_of)[0].facts == plain


def test_facts_of_a_type_of_the_users_own_keep_their_names() -> None:
    """Whoever reads the recording has never heard of it."""

    class Foreign(Message, frozen=True, kw_only=True):
        trajectory_id: str
        count: int

    message = Foreign(trajectory_id="g1.0", count=3)
    assert reader_of(type(message))(message) == {"trajectory_id": "g1.0", "count": 3}
    assert names_of("Foreign") == ()


def test_lines_of_another_commit_are_read_with_numbers_for_names() -> None:
    """Its fields may have other names, or stand in another order."""
    told = Decision("tell", type="GroupOpened", facts=reader_of(GroupOpened)(OPENED))
    line = Line(0, 0.0, 0.0, "received", type="GroupOpened", facts=reader_of(GroupOpened)(OPENED))
    data = encode_lines([msgspec.structs.replace(line, decisions=[told])])
    own, foreign = ({"schema": fingerprint()}, {"schema": "another"})
    (known,), (unknown,) = (read_lines(about, [data]) for about in (own, foreign))
    assert known.facts["group_id"] == known.decisions[0].facts["group_id"] == OPENED.group_id
    assert (
        set(unknown.facts) == set(unknown.decisions[0].facts) == {"value_0", "value_1", "value_2"}
    )


@pytest.mark.parametrize("place", range(14))
@pytest.mark.parametrize("strange", [None, 7, "x", [7], [[7]], [["tell", "buffer"]], {"a": 1}])
def test_a_line_of_another_layout_is_refused_as_one(place: int, strange: object) -> None:
    """Whatever another commit wrote there, a reader says so; it does not fall over."""
    line = Line(0, 0.0, 0.0, "received", type="GroupOpened", facts=reader_of(GroupOpened)(OPENED))
    (parts,) = msgspec.msgpack.decode(encode_lines([line]))
    parts[place] = strange
    with contextlib.suppress(msgspec.DecodeError):
        (found,) = decode_lines(msgspec.msgpack.encode([parts]), names_of)
        assert isinstance(found, Line)


def test_contents_are_kept_once_and_read_up_to_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "a.payloads"
    payloads = Payloads(path, 1 << 20)
    addresses = [payloads.keep(content) for content in (b"one", b"two", b"one")]
    payloads.close()
    assert addresses[0] == addresses[2] == address_of(b"one")
    assert [content for _, content in read_payloads(path)] == [b"one", b"two"]
    path.write_bytes(path.read_bytes()[:-1])
    assert [content for _, content in read_payloads(path)] == [b"one"]


def test_a_full_file_of_contents_says_so_and_stays_full(tmp_path: Path) -> None:
    """A gap in the middle would replay as something that never happened."""
    payloads = Payloads(tmp_path / "a.payloads", 100)
    payloads.keep(bytes(40))
    payloads.keep(bytes(41))
    payloads.keep(b"small")
    payloads.close()
    assert payloads.ended == "system.recorder.payload_bytes_max = 100 was reached"
    assert len(list(read_payloads(tmp_path / "a.payloads"))) == 1


OPENED = GroupOpened(group_id="g0000001", prompt_id="p", size=2)


class Dying:
    """A disk that takes a part of each write, and after so many bytes nothing."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(28, "no space left on device")
        taken: int = self.file.write(data[: min(self.room, 7)])
        self.room -= taken
        return taken

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize(("room", "kept"), [(10_000, [b"a" * 50, b"b" * 50]), (80, [b"a" * 50])])
def test_a_disk_that_takes_a_part_loses_nothing_in_the_middle(
    tmp_path: Path, room: int, kept: list[bytes]
) -> None:
    """Behind a torn content nothing is found any more, so nothing is written there either."""
    path = tmp_path / "a.payloads"
    payloads = Payloads(path, 1 << 20)
    payloads._file = Dying(payloads._file, room)  # type: ignore[assignment]
    for content in (b"a" * 50, b"b" * 50):
        payloads.keep(content)
    payloads.close()
    assert [content for _, content in read_payloads(path)] == kept
    assert ("no space left" in payloads.ended) == (len(kept) == 1)
    assert path.stat().st_size <= room
