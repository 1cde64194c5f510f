"""Bytes of strangers: whatever arrives, the only exception is ProtocolError, and little is made."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.golden import read

from milepost.messages import registry
from milepost.messages.bus.delivery import (
    Delivery,
    Kind,
    pack_delivery,
    unpack_delivery,
    unpack_released,
)
from milepost.messages.codec import Codec, UnknownType
from milepost.messages.envelope import PROTOCOL, Header, pack_header, unpack_header
from milepost.messages.errors import ProtocolError
from milepost.messages.layout import Placed
from milepost.messages.limits import BusLimits
from milepost.messages.msgpacking import pack, unpack
from milepost.messages.structure import check_depth, check_structure, scan

CODEC = Codec()
NAMES = [one.name for one in registry.registered()]
GOLDEN = {name: bytes.fromhex(frames[0]) for name, frames in read(PROTOCOL).items()}
HEADER = Header(1, 0, "Begin", 1, 0, "a", 0, 1, "run", 1)


def decode(name: str, body: bytes, buffers: list[bytes]) -> None:
    """Anything but ProtocolError escapes."""
    with contextlib.suppress(ProtocolError):
        CODEC.decode(name, body, buffers)


@given(name=st.sampled_from(NAMES), body=st.binary(max_size=200), buffers=st.lists(st.binary()))
def test_random_bytes(name: str, body: bytes, buffers: list[bytes]) -> None:
    decode(name, body, buffers)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(name=st.sampled_from(NAMES), data=st.data())
def test_right_fields_with_wrong_values(name: str, data: st.DataObject) -> None:
    """Well-formed msgpack with the type's own field names reaches deeper than random bytes."""
    known = registry.find(name)
    assert known is not None
    fields = [field.name for field in msgspec.structs.fields(known.type)]
    bulk = st.fixed_dictionaries(
        {"dtype": st.sampled_from(["int32", "x"]), "shape": st.lists(st.integers(-1, 4)) | PLAIN},
        optional={"data": st.binary(), "frame": PLAIN, "offset": PLAIN, "segment": PLAIN},
    )
    body = {one: data.draw(PLAIN | bulk) for one in fields}
    decode(name, pack(body), [b"1234"])


@given(name=st.sampled_from(NAMES), data=st.data())
def test_real_messages_with_some_bytes_changed(name: str, data: st.DataObject) -> None:
    body = bytearray(GOLDEN[name])
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decode(name, bytes(body[: data.draw(st.integers(0, len(body)))]), [])


@given(
    name=st.sampled_from([one.name for one in registry.registered() if one.is_closed]),
    data=st.data(),
)
def test_what_is_read_in_one_pass_is_what_the_careful_way_reads(
    name: str, data: st.DataObject
) -> None:
    """Two ways to read must never become two protocols."""
    body = bytearray(GOLDEN[name])
    for _ in range(data.draw(st.integers(0, 2))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    known = registry.find(name)
    assert known is not None
    try:
        fields = unpack(bytes(body), ext_hook=refuse)
        slowly = msgspec.convert(
            fields,
            known.type,
            builtin_types=(bytes, bytearray, memoryview),
            dec_hook=Placed((), None),
        )
    except (ValueError, TypeError, msgspec.ValidationError):
        return
    assert pack(msgspec.to_builtins(slowly, enc_hook=repr)) == pack(
        msgspec.to_builtins(CODEC.decode(name, bytes(body)), enc_hook=repr)
    )


def refuse(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code}, {len(data)} bytes")


@given(st.binary(max_size=200))
def test_random_headers_deliveries_and_releases(frame: bytes) -> None:
    for read_frame in (unpack_header, unpack_delivery, unpack_released):
        with contextlib.suppress(ProtocolError):
            read_frame(frame)


@given(PLAIN)
def test_well_formed_things_that_are_no_headers(value: object) -> None:
    for read_frame in (unpack_header, unpack_delivery, unpack_released):
        with contextlib.suppress(ProtocolError):
            read_frame(pack(value))


def test_headers_and_deliveries_come_back() -> None:
    assert unpack_header(pack_header(HEADER)) == HEADER
    assert unpack_delivery(pack_delivery(1, 2, 3, 4, 5, 6, 7)) == Delivery(
        Kind.ASK, 2, 3, 4, 5, 6, 7
    )


def test_a_header_of_a_later_minor_version_may_be_longer() -> None:
    longer = pack([*msgspec.to_builtins(HEADER), "added in 1.4", 7])
    assert unpack_header(longer) == HEADER


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xdd\xff\xff\xff\xff", "no msgpack"),
        (b"\xdf\xff\xff\xff\xff", "no msgpack"),
        (b"\xc6\xff\xff\xff\xff", "no msgpack"),
        (b"\xdb\x7f\xff\xff\xff", "no msgpack"),
        (b"\xdd\x00\xff\xff\xff" * 1000, "nested too deep"),
        (b"\x91" * 100_000 + b"\xc0", "nested too deep"),
        (b"\x91" * 40 + b"\xc0", "nested deeper than 32"),
        (b"\x81\xa0" * 40 + b"\xc0", "nested deeper than 32"),
        (b"\xdd" + struct.pack(">I", 2_000_000) + b"\xc0" * 2_000_000, "more than 1048576 values"),
        (b"\xc1", "no msgpack"),
        (b"\x80\x80", "no msgpack"),
        (b"", "no msgpack"),
        (b"\xc4\x01", "no msgpack"),
        (b"x" * (BusLimits().body_bytes_max + 1), "body of 16777217 bytes, the limit is 16777216"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[:6].hex()}x{len(value)}",
)
def test_lengths_that_lie_and_shapes_that_explode_are_refused_before_decoding(
    body: bytes, text: str
) -> None:
    """A few bytes that announce gigabytes must not make gigabytes."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=text):
            CODEC.decode("Begin", body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def slow_depth(value: object) -> int:
    if isinstance(value, dict) and value:
        return 1 + max(slow_depth(one) for one in value.values())
    if isinstance(value, list) and value:
        return 1 + max(map(slow_depth, value))
    return 0


def slow_count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(slow_count(key) + slow_count(one) for key, one in value.items())
    if isinstance(value, list):
        return 1 + sum(map(slow_count, value))
    return 1


@given(value=PLAIN, depth=st.integers(1, 4), items=st.integers(1, 30))
def test_depth_and_count_are_those_of_the_slow_obvious_walk(
    value: object, depth: int, items: int
) -> None:
    body = pack(value)
    deep, many = slow_depth(value) > depth, slow_count(value) > items
    with contextlib.ExitStack() as refused:
        if deep or many:
            refused.enter_context(pytest.raises(ProtocolError))
        scan(body, depth, items)
    with contextlib.ExitStack() as refused:
        if deep:
            refused.enter_context(pytest.raises(ProtocolError, match="deeper"))
        if check_structure(body, bytes_max=1 << 20, depth_max=depth, items_max=1):
            check_depth(value, depth)


def test_extension_types_are_no_part_of_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="extension type 5"):
        CODEC.decode("EventReported", b"\x81\xa1x\xd4\x05\x00")


def test_an_unknown_type_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UnknownType, match="unknown message type 'Heartbeet', nearest is Heartbeat"):
        CODEC.decode("Heartbeet", b"\x80")


def test_too_many_frames_are_refused() -> None:
    with pytest.raises(ProtocolError, match="5002 frames, the limit is 4096"):
        CODEC.decode("Begin", b"\x80", [b""] * 5000)
