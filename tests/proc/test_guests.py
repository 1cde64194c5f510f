"""The guests' door as a real process, and agents that join it from outside as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
import zmq.asyncio
from proc.guests import end, job
from proc.hosts import MILEPOST, environment, prompt
from unit.agent.kit import order

from milepost.actors.guests.invitation import read_invitation
from milepost.configs.spec import Address
from milepost.messages.agent import CancelEpisode
from milepost.messages.bus import Bus, Unanswered
from milepost.messages.guests import JoinRun
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import ChatTurn
from milepost.supervisor.cleanup.listeners import Listener, listening

pytestmark = pytest.mark.timeout(90)


async def leave(process: Process) -> dict[str, int]:
    """Ask a guest to leave, as Ctrl-C does; what it did."""
    process.send_signal(signal.SIGINT)
    stdout, _ = await process.communicate()
    assert process.returncode == 0
    counts: dict[str, int] = json.loads(stdout)
    return counts


async def test_a_guest_joins_works_is_judged_like_any_agent_and_leaves_without_a_loss(
    tmp_path: Path,
) -> None:
    """The run's reward function judges; a broken episode fails by name; a cancelled one aborts.

    The room that rollout knows of is the guest's, from its first word to its last.
    """
    notes = tmp_path / "notes"
    async with job(tmp_path, reward="proc.agent_rewards:exact") as scene:
        option = f'notes="{notes}"'
        guest = await scene.visit(
            "proc.agent_code:Asker", "--episodes", "3", "--json", "--option", option
        )
        await scene.room(3)
        await scene.tell(order("g.0", prompt=prompt()))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward, ended.cause) == ("completed", 1.0, "")
        assert (ended.metrics, ended.num_turns) == ({"solved": 1.0}, 1)
        await scene.tell(order("g.1", prompt=prompt(raises=True)))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward) == ("failed", None)
        assert "visitor: RuntimeError: tool broke, at " in ended.cause
        scene.answers_chats = False
        await scene.tell(order("g.2", prompt=prompt()))
        turn = await scene.next(ChatTurn)
        assert (turn.trajectory_id, turn.attempt) == ("g.2", 0)
        await scene.tell(CancelEpisode(trajectory_id="g.2", reason="group dropped"))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.cause) == ("aborted", "group dropped")
        assert await leave(guest) == {"cancelled": 1, "failed": 1, "reported": 1}
    assert notes.read_text().splitlines() == ["started with {'split': 'a'}", "stopped"]


async def test_a_guest_that_leaves_finishes_what_it_has_and_takes_nothing_new(
    tmp_path: Path,
) -> None:
    async with job(tmp_path) as scene:
        scene.answers_chats = False
        guest = await scene.visit("proc.agent_code:Teller", "--episodes", "4", "--json")
        await scene.room(4)
        await scene.tell(order("g.0", prompt=prompt()))
        await scene.next(ChatTurn)
        guest.send_signal(signal.SIGINT)
        await scene.room(1)
        scene.release()
        assert (await scene.next(EpisodeEnded)).reward == 1.0
        stdout, _ = await guest.communicate()
        assert json.loads(stdout) == {"reported": 1}


async def test_episodes_of_a_guest_that_is_killed_go_back_once(tmp_path: Path) -> None:
    """Aborted, not failed: nobody's verdict. The next guest gets the next attempt."""
    async with job(tmp_path, silence_s=2.0) as scene:
        scene.answers_chats = False
        first = await scene.visit("proc.agent_code:Teller", "--episodes", "2")
        await scene.room(2)
        await scene.tell(order("g.0", prompt=prompt()))
        await scene.tell(order("g.1", prompt=prompt()))
        await scene.next(ChatTurn)
        await scene.next(ChatTurn)
        first.kill()
        ends = [await scene.next(EpisodeEnded) for _ in range(2)]
        assert sorted(ended.trajectory_id for ended in ends) == ["g.0", "g.1"]
        assert {ended.status.value for ended in ends} == {"aborted"}
        assert ends[0].cause == "guest visitor left: it was silent for 2 s"
        scene.answers_chats = True
        await scene.visit("proc.agent_code:Teller", "--episodes", "1")
        await scene.room(1)
        await scene.tell(order("g.0", attempt=1, prompt=prompt()))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.attempt, ended.reward) == ("completed", 1, 1.0)
        assert scene.heard.empty()


async def test_over_tcp_only_the_invited_come_in(tmp_path: Path) -> None:
    """The invitation's key opens; a key of one's own does not, and neither does no key."""
    async with job(tmp_path, listen="tcp://127.0.0.1:0") as scene:
        path = tmp_path / ".milepost" / "guests.json"
        assert path.stat().st_mode & 0o077 == 0
        invitation = read_invitation(str(tmp_path))
        assert invitation.endpoint.startswith("tcp://127.0.0.1:")
        ((endpoint, inode),) = scene.ports.items()
        told = Listener("guests", endpoint, inode)
        assert (endpoint, listening([told])) == (invitation.endpoint, [told])
        stranger = await Bus.open(
            name="stranger",
            incarnation=0,
            run_id="r1",
            addresses={
                "guests-door": Address(
                    endpoint=invitation.endpoint, public_key=invitation.server_public_key
                )
            },
            secret_key="JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6",
        )
        with pytest.raises(Unanswered, match="refused"):
            await stranger.ask("guests-door", JoinRun(name="x", episodes_max=1), deadline_s=2.0)
        await stranger.close(deadline_s=0.1)
        await scene.visit("proc.agent_code:Teller", "--episodes", "1")
        await scene.room(1)
        await scene.tell(order("g.0", prompt=prompt()))
        assert (await scene.next(EpisodeEnded)).reward == 1.0


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("failed", 1)])
async def test_at_the_job_s_end_guests_hear_goodbye_and_their_command_ends_like_the_job(
    tmp_path: Path, status: str, code: int
) -> None:
    """Also one in the middle of an episode: nobody waits for a time-out to learn it."""
    async with job(tmp_path) as scene:
        scene.answers_chats = False
        idle = await scene.visit("proc.agent_code:Teller", "--episodes", "1", "--json")
        await scene.room(1)
        busy = await scene.visit("proc.agent_code:Teller", "--episodes", "2", "--json")
        await scene.room(3)
        await scene.tell(order("g.0", prompt=prompt()))
        await scene.next(ChatTurn)
        await end(scene, status, "this is how it went")
        counts = []
        for guest in (idle, busy):
            stdout, _ = await guest.communicate()
            assert guest.returncode == code
            counts.append(json.loads(stdout))
        assert counts == [{}, {"cancelled": 1}]


async def said(guest: Process) -> str:
    """The next line that a guest prints."""
    assert guest.stdout is not None
    return (await guest.stdout.readline()).decode().strip()


async def test_a_guest_that_streams_gets_parts_before_the_reply(tmp_path: Path) -> None:
    """From the session through the door to another process, as fast as that one reads."""
    async with job(tmp_path) as scene:
        scene.answers_chats = False
        guest = await scene.visit("proc.agent_code:Reader", "--episodes", "1")
        await scene.room(1)
        await scene.tell(order("g.0", prompt=prompt()))
        assert (await scene.next(ChatTurn)).stream
        for number, letter in enumerate("cat", start=1):
            await scene.stream(number)
            assert await said(guest) == letter
        scene.release()
        assert await said(guest) == "whole: cat"
        assert (await scene.next(EpisodeEnded)).reward == 1.0


async def test_a_guest_that_is_killed_leaves_no_sandbox(tmp_path: Path) -> None:
    """No registry of a run is on a guest's machine: a keeper beside it gives back its folders."""
    async with job(tmp_path) as scene:
        guest = await scene.visit("proc.agent_code:Boxer", "--episodes", "1")
        await scene.room(1)
        await scene.tell(order("g.0", prompt=prompt()))
        folder = await said(guest)
        assert await asyncio.to_thread(os.path.isdir, folder)
        [keeper] = [
            child
            for child in psutil.Process(guest.pid).children()
            if any(word.endswith("keeper.py") for word in child.cmdline())
        ]
        guest.kill()
        await asyncio.to_thread(psutil.wait_procs, [keeper], 30.0)
        assert not await asyncio.to_thread(os.path.exists, folder)


async def test_a_stranger_of_another_major_version_is_refused_in_words_and_of_a_minor_one_served(
    tmp_path: Path,
) -> None:
    """Bytes of a newer peer may mean something else; new fields of a minor version do not."""
    async with job(tmp_path) as scene:
        invitation = read_invitation(str(tmp_path))
        for major, minor, told in ((2, 0, b"major versions differ"), (1, 9, b"RunJoined")):
            context = zmq.asyncio.Context()
            socket = context.socket(zmq.DEALER)
            socket.linger, socket.hwm = 0, 16
            socket.connect(invitation.endpoint)
            delivery = msgspec.msgpack.encode([1, 0, 1, 1, 0, 0, 20_000])
            header = [major, minor, "JoinRun", 7, 0, "stranger", 0, 1, "r1", time.time_ns()]
            body = {"name": "x", "episodes_max": 1, "field_of_a_later_version": 1}
            await socket.send_multipart(
                [delivery, msgspec.msgpack.encode(header), msgspec.msgpack.encode(body)]
            )
            while len(frames := await socket.recv_multipart()) < 3:
                pass
            assert told in b"".join(frames)
            socket.close()
            context.term()
        await scene.room(1)


async def test_a_job_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *MILEPOST, "agent", "proc.agent_code:Teller", "--connect", str(tmp_path), stderr=PIPE,
        env=environment(),
    )  # fmt: skip
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert "no invitation at" in stderr.decode()
