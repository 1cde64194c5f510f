"""The TypeScript client on Node, with the real packages from npm, against a running door.

`make test-clients` runs these: `npm ci` fetches zeromq and @msgpack/msgpack first.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final

import pytest
from proc.guests import end, job
from proc.hosts import MILEPOST, Host, environment, prompt
from unit.agent.kit import order

from milepost.actors.agent.processes import started
from milepost.messages.agent import CancelEpisode
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import ChatTurn

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif("MILEPOST_NETWORK" not in os.environ, reason="MILEPOST_NETWORK is not set"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
    pytest.mark.timeout(300),
]

CLIENT: Final = Path(__file__).parents[2] / "clients" / "typescript"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, installed and compiled as its page says."""
    folder = tmp_path_factory.mktemp("client") / "typescript"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "build"))
    for words in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        command = ["npm", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


async def start(built: Path, scene: Host, episodes: int, example: str = "echo") -> Process:
    """An example of the client, as a person starts it."""
    invitation = str(scene.folder / ".milepost" / "guests.json")
    command = ("node", f"build/examples/{example}.js", invitation, str(episodes))
    guest = await started(asyncio.create_subprocess_exec(*command, cwd=built, stdout=PIPE))
    scene.guests.append(guest)
    return guest


@pytest.mark.parametrize("listen", ["ipc", "tcp://127.0.0.1:0"])
async def test_an_agent_on_node_joins_works_is_cancelled_and_leaves(
    tmp_path: Path, built: Path, listen: str
) -> None:
    """Hello, credit, episode, chat, result, cancellation, goodbye; over tcp with CURVE."""
    async with job(tmp_path, listen=listen, silence_s=4.0) as scene:
        guest = await start(built, scene, 2)
        await scene.room(2)
        for number in range(20):
            await scene.tell(order(f"g.{number}", prompt=prompt()))
        ends = [await scene.next(EpisodeEnded) for _ in range(20)]
        aborted = [ended for ended in ends if ended.status.value != "completed"]
        # More than its credit and the queue behind it is given back, and never piles up.
        assert {ended.status.value for ended in aborted} <= {"aborted"}
        good = [ended for ended in ends if ended.status.value == "completed"]
        assert good
        assert {(e.reward, e.metrics["solved"], e.num_turns) for e in good} == {(1.0, 1.0, 1)}
        scene.answers_chats = False
        await scene.tell(order("h.0", prompt=prompt()))
        await scene.next(ChatTurn)
        await scene.tell(CancelEpisode(trajectory_id="h.0", reason="group dropped"))
        assert (await scene.next(EpisodeEnded)).cause == "group dropped"
        guest.send_signal(signal.SIGINT)
        stdout, _ = await guest.communicate()
        assert guest.returncode == 0
        assert json.loads(stdout) == {"reported": len(good), "failed": 0, "cancelled": 1}


async def test_episodes_of_a_node_process_that_is_killed_go_back(
    tmp_path: Path, built: Path
) -> None:
    async with job(tmp_path, silence_s=2.0) as scene:
        scene.answers_chats = False
        guest = await start(built, scene, 1)
        await scene.room(1)
        await scene.tell(order("g.0", prompt=prompt()))
        await scene.next(ChatTurn)
        guest.kill()
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward) == ("aborted", None)


async def test_a_reply_comes_in_parts_and_the_job_s_end_ends_the_program(
    tmp_path: Path, built: Path
) -> None:
    """Streamed from the session to Node, then goodbye: nobody waits for a time-out."""
    async with job(tmp_path) as scene:
        scene.answers_chats = False
        guest = await start(built, scene, 1, "stream")
        assert guest.stdout is not None
        await scene.room(1)
        await scene.tell(order("g.0", prompt=prompt()))
        await scene.next(ChatTurn)
        for number, letter in enumerate("cat", start=1):
            await scene.stream(number)
            assert (await guest.stdout.readline()).decode() == f"{letter}\n"
        scene.release()
        assert (await guest.stdout.readline()).decode() == "whole: cat\n"
        assert (await scene.next(EpisodeEnded)).reward == 1.0
        await end(scene, "done", "so it went")
        await guest.communicate()
        assert guest.returncode == 0


async def test_a_job_that_failed_is_told_to_its_guests(tmp_path: Path, built: Path) -> None:
    async with job(tmp_path) as scene:
        guest = await start(built, scene, 1)
        await scene.room(1)
        await end(scene, "failed", "engine-0 died")
        stdout, _ = await guest.communicate()
        assert guest.returncode == 1
        assert json.loads(stdout) == {"reported": 0, "failed": 0, "cancelled": 0}


def test_the_client_passes_the_conformance_kit(built: Path) -> None:
    """Everything that an agent in Python is asked to do right, through the same door."""
    command = [*MILEPOST, "agent-check", "node build/examples/echo.js {invitation} 64"]
    done = subprocess.run(
        command, cwd=built, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
