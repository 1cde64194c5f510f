"""The doorstep of a tcp mailbox: how many may stand there, and that it is never shut for good."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
import zmq
from proc.bus.harness import until

from milepost.messages.bus.doorstep import STANDING_MAX, Doorstep, standing_max

IN, PROVEN, GONE = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
SYN_SENT = 2
PATIENT_S, SHORT_S = 3600.0, 0.001


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def knock(listener: socket.socket) -> socket.socket:
    stranger = socket.socket()
    stranger.settimeout(0)
    stranger.connect_ex(listener.getsockname())
    return stranger


def shut(step: Doorstep) -> bool:
    return step.is_shut


def is_outside(stranger: socket.socket) -> bool:
    """Whether its first packet has no answer: it is never a question of time on one machine."""
    state: int = struct.unpack("B", stranger.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return state == SYN_SENT


def test_a_process_keeps_three_quarters_of_its_descriptors() -> None:
    assert standing_max(1024) == 256
    assert standing_max(1 << 20) == STANDING_MAX
    assert standing_max(resource.RLIM_INFINITY) == STANDING_MAX
    assert standing_max(2) == 1


async def test_the_door_is_shut_while_too_many_stand_there_and_opens_again(
    listener: socket.socket,
) -> None:
    """Who comes meanwhile is not refused but not heard: its system knocks again by itself."""
    step = Doorstep(listener.fileno(), 4, PATIENT_S)
    for number in range(4):
        assert not shut(step)
        step.noticed(IN, number)
    with knock(listener) as late:
        assert shut(step)
        assert is_outside(late)
        step.noticed(PROVEN, 0)
        assert shut(step), "three of four are no half"
        step.noticed(GONE, 1)
        assert not shut(step)
    with socket.create_connection(listener.getsockname(), timeout=20):
        pass
    assert (step.num_accepted, step.num_proven, step.num_standing, step.num_shut) == (4, 1, 2, 1)
    step.close()


async def test_a_descriptor_that_came_twice_stands_there_once(listener: socket.socket) -> None:
    """The kernel gives a number again; what was not told of the first must not count for ever."""
    step = Doorstep(listener.fileno(), 4, PATIENT_S)
    for _ in range(10):
        step.noticed(IN, 7)
    step.noticed(GONE, 8)
    assert (step.num_standing, step.is_shut) == (1, False)
    step.close()


async def test_who_has_proven_itself_does_not_stand_there_any_more(
    listener: socket.socket,
) -> None:
    """ZeroMQ says 0 for its descriptor; a run's own peers must not shut the door to each other."""
    step = Doorstep(listener.fileno(), 2, PATIENT_S)
    for number in (7, 8, 9):
        step.noticed(IN, number)
        step.noticed(PROVEN, 0)
        assert (step.num_standing, step.is_shut) == (0, False)
    step.noticed(GONE, 8)
    assert (step.num_proven, step.num_standing, step.num_shut) == (3, 0, 0)
    step.close()


async def test_who_stands_in_for_another_one_leaves_in_time(listener: socket.socket) -> None:
    """A stranger came first and went; the peer that has proven itself is counted, but not on."""
    step = Doorstep(listener.fileno(), 4, SHORT_S)
    step.noticed(IN, 1)
    step.noticed(IN, 2)
    step.noticed(PROVEN, 0)
    step.noticed(GONE, 1)
    assert step.num_standing == 1
    loop = asyncio.get_running_loop()
    late_s = loop.time() + 2 * SHORT_S
    await until(lambda: loop.time() > late_s, "its time to be over")
    step.noticed(IN, 3)
    assert step.num_standing == 1
    step.close()


async def test_a_shut_door_opens_by_itself_whatever_was_not_told(listener: socket.socket) -> None:
    step = Doorstep(listener.fileno(), 1, SHORT_S)
    step.noticed(IN, 1)
    assert shut(step)
    await until(lambda: not step.is_shut, "the door to open by itself")
    assert step.num_standing == 0
    step.close()


async def test_the_next_one_on_the_same_socket_finds_the_door_open(
    listener: socket.socket,
) -> None:
    """A process that is killed behind a shut door leaves the filter on a socket that lives on."""
    dead = Doorstep(listener.fileno(), 1, PATIENT_S)
    dead.noticed(IN, 1)
    successor = Doorstep(listener.fileno(), 1, PATIENT_S)
    with socket.create_connection(listener.getsockname(), timeout=20):
        assert not successor.is_shut
    successor.close()
    dead.close()
