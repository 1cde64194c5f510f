"""The codec: where arrays go, what is refused, how old bodies are brought up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.messages.buffer import GroupOpened
from milepost.messages.bulk import Bulk
from milepost.messages.codec import Codec
from milepost.messages.engine import EpochAnswer, Generated, WeightBucket
from milepost.messages.errors import ProtocolError
from milepost.messages.layout import GATHER_BELOW_BYTES, GATHERED_BYTES, Place
from milepost.messages.limits import BusLimits
from milepost.messages.msgpacking import pack, unpack
from milepost.messages.session import FinishTrajectory
from milepost.messages.shared import FinishReason, Message, Status
from milepost.messages.supervisor import EventReported
from milepost.messages.upgrades import Upgrade


def bucket(*sizes: int) -> WeightBucket:
    tensors = tuple(Bulk("uint8", (size,), bytes([size % 251]) * size) for size in sizes)
    return WeightBucket(version=1, index=0, names=(), tensors=tensors)


def decoded(codec: Codec, message: Message) -> Message:
    encoded = codec.encode(message)
    body, *buffers = encoded.frames()
    return codec.decode(encoded.type, bytes(body), buffers)


SIZES = st.lists(
    st.one_of(
        st.integers(0, 3000),
        st.integers(GATHER_BELOW_BYTES - 2, GATHER_BELOW_BYTES + 2),
        st.just(GATHERED_BYTES),
    ),
    max_size=40,
)


@given(SIZES)
def test_arrays_of_all_sizes_come_back_and_large_ones_are_not_copied(sizes: list[int]) -> None:
    codec = Codec()
    message = bucket(*sizes)
    encoded = codec.encode(message)
    frames = encoded.frames()
    assert decoded(codec, message) == message
    for tensor in message.tensors:
        if tensor.nbytes >= GATHER_BELOW_BYTES:
            assert any(frame is tensor.data for frame in frames), "a large array was copied"


def test_many_small_arrays_share_a_frame() -> None:
    """A batch of a thousand trajectories has thousands of arrays; a frame each costs more."""
    encoded = Codec().encode(bucket(*[2000] * 3000))
    assert len(encoded.frames()) <= 2 + 3000 * 2000 // GATHERED_BYTES + 1


def test_arrays_lie_at_aligned_places() -> None:
    """An array library reads them in place."""
    body = unpack(Codec().encode(bucket(1025, 1500, 2001, 1033)).body)
    offsets = [tensor.get("offset", 0) for tensor in body["tensors"]]
    assert len(offsets) == 4
    assert all(offset % 16 == 0 for offset in offsets)


def test_places_in_shared_memory_take_the_role_of_frames() -> None:
    codec = Codec()
    message = bucket(10, 5000, 100_000)
    memory = bytearray(200_000)
    memory[64:5064] = message.tensors[1].data
    memory[8192:108_192] = message.tensors[2].data
    encoded = codec.encode(message, [Place("s", 64), Place("s", 8192)])
    assert encoded.buffers == []

    def open_segment(name: str, offset: int, nbytes: int) -> memoryview:
        assert name == "s"
        return memoryview(memory)[offset : offset + nbytes]

    assert codec.decode(encoded.type, encoded.body, opener=open_segment) == message
    with pytest.raises(ProtocolError, match="shared memory, which this link does not use"):
        codec.decode(encoded.type, encoded.body)


@pytest.mark.parametrize("reward", [nan, inf, -inf])
def test_a_reward_that_is_no_number_is_refused_by_name(reward: float) -> None:
    """NaN passes msgpack in silence and turns up as a NaN loss an hour later."""
    codec = Codec()
    verdict = FinishTrajectory(
        trajectory_id="g.0", attempt=0, status=Status.COMPLETED, reward=reward
    )
    with pytest.raises(
        ProtocolError, match=r"FinishTrajectory: expected a finite number - at `\$\.reward`"
    ):
        decoded(codec, verdict)
    event = EventReported(source="a", kind="k", text="", values={"loss": reward})
    assert isinstance(decoded(codec, event), EventReported)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"dtype": "int31", "shape": [1], "data": b"1234"}, "unknown bulk dtype 'int31'"),
        ({"dtype": "int32", "shape": [2], "data": b"1234"}, "needs 8 bytes, the buffer has 4"),
        ({"dtype": "int32", "shape": [-1], "data": b""}, "a size that is no count"),
        ({"dtype": "int32", "shape": [True], "data": b"1234"}, "a size that is no count"),
        (
            {"dtype": "int32", "shape": [1] * 9, "data": b"1234"},
            "at most 8 sizes",
        ),
        ({"dtype": "int32", "shape": 1, "data": b"1234"}, "at most 8 sizes"),
        ({"dtype": "int32", "shape": [1], "data": "1234"}, "must be binary, got str"),
        ({"dtype": "int32", "shape": [1], "frame": 1}, "bulk frame 1 of 1"),
        ({"dtype": "int32", "shape": [1], "frame": 0, "offset": -4}, "bulk offset -4"),
        ({"dtype": "int32", "shape": [1], "frame": 0, "offset": 4}, "buffer has 0"),
        ({"dtype": "int32", "shape": [1 << 40, 1 << 40], "frame": 0}, "the buffer has 4"),
        ({"dtype": "int32", "shape": [1]}, "neither data, nor frame, nor segment"),
        ([1, 2], "expected a bulk map, got list"),
    ],
    ids=str,
)
def test_an_array_that_does_not_fit_its_bytes_is_refused_with_its_path(
    place: object, text: str
) -> None:
    body = pack({"version": 1, "index": 0, "names": [], "tensors": [place]})
    with pytest.raises(ProtocolError, match=text) as refused:
        Codec().decode("WeightBucket", body, [b"1234"])
    assert "$.tensors[0]" in str(refused.value)


def test_a_missing_optional_array_stays_missing() -> None:
    row = Bulk("int32", (0,), b"")
    message = Generated(
        request_id="r",
        token_ids=row,
        logprobs=row,
        spans=(),
        finish_reason=FinishReason.STOP,
        cached_tokens=0,
    )
    assert decoded(Codec(), message) == message


def test_what_no_receiver_would_accept_is_refused_where_it_is_sent() -> None:
    small = Codec(BusLimits(body_bytes_max=1000, frames_max=4, frame_bytes_max=70_000))
    with pytest.raises(ValueError, match=r"body of \d+ bytes, system.bus.body_bytes_max is 1000"):
        small.encode(EpochAnswer(version=1, ok=True, reason="x" * 2000))
    with pytest.raises(ValueError, match=r"5 frames, system\.bus\.frames_max is 4"):
        small.encode(bucket(*[GATHER_BELOW_BYTES] * 3))
    with pytest.raises(ValueError, match=r"a buffer of 80000 bytes"):
        small.encode(bucket(80_000))


def test_an_unregistered_type_is_told_how_to_register() -> None:
    class Unheard(Message, kw_only=True):
        pass

    with pytest.raises(TypeError, match=r"call milepost.messages.registry.register\(Unheard\)"):
        Codec().encode(Unheard())


def test_older_bodies_are_brought_up_step_by_step() -> None:
    """1.0 called it `good`, 1.1 `fine`: each step knows only the version before it."""

    def to_1_1(body: dict[str, object]) -> dict[str, object]:
        return {**body, "fine": body.pop("good")}

    def to_1_2(body: dict[str, object]) -> dict[str, object]:
        return {**body, "ok": body.pop("fine")}

    steps = (
        Upgrade((0, 8), {"EpochAnswer": to_1_1}),
        Upgrade((0, 9), {"EpochAnswer": to_1_2}),
    )
    codec = Codec(upgrades=steps)
    expected = EpochAnswer(version=3, ok=True)
    for version, field in (((0, 7), "good"), ((0, 8), "fine"), ((0, 9), "ok"), ((1, 0), "ok")):
        body = pack({"version": 3, field: True})
        assert codec.decode("EpochAnswer", body, version=version) == expected
    body = pack({"text": "untouched"})
    assert codec.decode("Stacks", body, version=(0, 7)) == codec.decode("Stacks", body)
    with pytest.raises(ProtocolError, match="body is a list, not a map"):
        codec.decode("EpochAnswer", pack([1]), version=(0, 7))


def test_a_time_in_the_metadata_of_a_prompt_travels_as_text() -> None:
    """Data sources give times; as an extension type, the receiver would refuse the message."""
    codec = Codec()
    metadata = {"made": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "bytes": b"\xd7\xff"}
    opened = GroupOpened(group_id="g", prompt_id="p", size=1, metadata=metadata)
    back = decoded(codec, opened)
    assert isinstance(back, GroupOpened)
    assert back.metadata == {"made": "2026-01-02T03:04:05.000006Z", "bytes": b"\xd7\xff"}


def test_a_codec_that_garbles_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at the first message of an hour-long run otherwise."""

    def garbled(message: Message, **_: object) -> bytes:
        return pack({**msgspec.structs.asdict(message), "reason": "garbled"})

    monkeypatch.setattr(msgspec.msgpack, "encode", garbled)
    with pytest.raises(RuntimeError, match="codec check: sent NotUnderstood"):
        Codec()


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="bus limit window_messages = 0, it must be positive"):
        replace(BusLimits(), window_messages=0)
