"""`milepost agent-check` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest
from proc.hosts import MILEPOST, environment

pytestmark = pytest.mark.timeout(120)

NUM_CHECKS: Final = 11


def check(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MILEPOST, "agent-check", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_agent_that_does_everything_right_gets_exit_code_0() -> None:
    done = check("proc.agent_code:Teller", "--json")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(results) == NUM_CHECKS
    assert not any(result["problems"] for result in results)


def test_faults_are_told_in_words_with_exit_code_1() -> None:
    """An agent that never gives a reward, where no function does: every ordinary episode fails."""
    done = check("proc.agent_code:Silent")
    assert done.returncode == 1
    assert " FAIL  An ordinary episode ends with a reward." in done.stdout
    assert "512 of 512 ended as failed: the agent reported no reward" in done.stdout


def test_a_reward_function_beside_the_agent_is_used() -> None:
    done = check("proc.agent_code:Silent", "--reward", "proc.agent_rewards:length")
    assert done.returncode == 0, done.stdout + done.stderr


GUEST: Final = (
    f"{sys.executable} -P -c 'from milepost.launch.cli import main; raise SystemExit(main())' "
    "agent {agent} --connect {{invitation}} --episodes 64"
)


def test_a_program_that_comes_as_a_guest_is_checked_through_the_door() -> None:
    """As any agent is, 512 episodes at once included; and it has to leave by itself at the end."""
    done = check(GUEST.format(agent="proc.agent_code:Teller"), "--json")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(results) == NUM_CHECKS + 1
    assert results[-1]["check"] == "leaves"


def test_faults_of_a_guest_are_told_in_words() -> None:
    done = check(GUEST.format(agent="proc.agent_code:Silent"))
    assert done.returncode == 1
    assert "512 of 512 ended as failed: the agent reported no reward" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["proc.nothing:X"], 2, "No module named 'proc.nothing'"),
        (["proc.agent_code:NoAgent"], 2, "is no subclass of milepost.actors.agent.Agent"),
        (["proc.agent_code:Ends"], 1, "ended the checking process with exit code 7"),
        (["false {invitation}"], 2, "ended with exit code 1 before it joined"),
        (["no-such-program {invitation}"], 2, "no-such-program cannot be started"),
        (["lookup_warmup"], 2, "there is no agent in it"),
        (["lookup", "--reward", "a:b"], 2, "the topology says this already"),
    ],
)
def test_what_cannot_be_checked_is_named(words: list[str], code: int, told: str) -> None:
    done = check(*words)
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done
