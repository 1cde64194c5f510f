"""The bytes of every message type, of this version and of all that went before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from wire.golden import current, read, versions

from milepost.messages import registry
from milepost.messages.codec import Codec
from milepost.messages.engine import EpochAnswer
from milepost.messages.envelope import PROTOCOL
from milepost.messages.examples import example
from milepost.messages.msgpacking import pack
from milepost.messages.schema import fingerprint
from milepost.messages.shared import Message

TYPES = [one.type for one in registry.registered()]
ALL = [(version, name) for version in versions() for name in read(version)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_went(kind: type[Message]) -> None:
    codec = Codec()
    message = example(kind)
    encoded = codec.encode(message)
    body, *buffers = encoded.frames()
    assert codec.decode(encoded.type, bytes(body), buffers) == message


def test_the_bytes_of_this_version_have_not_changed_by_accident() -> None:
    """A peer of the same version would misread a changed message.

    New field with a default: raise the minor version. Renamed, retyped, removed: the major one.
    Before the first release, and after both: `make golden`.
    """
    assert read(PROTOCOL) == current(), "see tests/wire/golden.py"


@pytest.mark.parametrize(("version", "name"), ALL, ids=str)
def test_the_bytes_of_every_version_with_our_major_are_understood(
    version: tuple[int, int], name: str
) -> None:
    """An agent that was built against an older minor version goes on working."""
    if version[0] != PROTOCOL[0]:
        return
    body, *buffers = (bytes.fromhex(frame) for frame in read(version)[name])
    message = Codec().decode(name, body, buffers, version=version)
    assert type(message).__name__ == name


def test_a_newer_minor_version_may_have_more_fields() -> None:
    """What we do not know we do not need: unknown fields are passed over."""
    body = pack({"version": 3, "ok": True, "reason": "", "added_in_1_7": [1, 2, 3]})
    message = Codec().decode("EpochAnswer", body, version=(1, 7))
    assert message == EpochAnswer(version=3, ok=True)


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    """HELLO compares them; one that depended on hash seeds would refuse every child."""
    command = "from milepost.messages.schema import fingerprint; print(fingerprint())"
    prints = {
        subprocess.run(
            [sys.executable, "-P", "-c", command],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {fingerprint()}


def test_no_two_message_types_share_a_name_and_every_inbox_is_registered() -> None:
    """The name is the type on the wire."""
    names = [kind.__name__ for module in registry.MODULES for kind in registry.messages_in(module)]
    assert len(names) == len(set(names))
    assert set(names) <= {one.name for one in registry.registered()}
    assert len(names) >= 80
