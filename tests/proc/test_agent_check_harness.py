"""`milepost agent-check --command`: a harness that knows an address and a key, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from proc.hosts import MILEPOST, environment

pytestmark = pytest.mark.timeout(240)

HARNESS: Final = f"{sys.executable} {Path(__file__).with_name('harness.py')}"
NUM_CHECKS: Final = 12


def check(command: str, *words: str) -> tuple[int, dict[str, str]]:
    """Exit code, and for each check what is wrong in one text."""
    done = subprocess.run(
        [*MILEPOST, "agent-check", "--command", command, "--json", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results, done.stderr
    return done.returncode, {each["check"]: "; ".join(each["problems"]) for each in results}


def test_a_harness_that_does_everything_right_holds_through_the_real_door() -> None:
    """Bounds, an engine error in mid-turn, cancellation and 32 processes at once included."""
    code, problems = check(HARNESS)
    assert (code, len(problems)) == (0, NUM_CHECKS), problems
    assert not any(problems.values()), problems


def test_a_harness_that_does_all_things_wrong_is_told_each_in_words() -> None:
    """What the session says to it, what it dies of, and who stays behind: a process that has left
    the group that is killed would hold an engine's slot for ever."""
    code, problems = check(f"{HARNESS} wrong")
    assert code == 1
    assert "not_append_only" in problems["histories_append"]
    assert "ended with code 1: 4" in problems["ends_with_a_reward"]
    assert "turns_max = 1, no second reply: failed" in problems["bounds_keep_the_reward"]
    assert "somebody still holds its request open" in problems["nothing_outlives_it"]
    assert not problems["engine_errors_fail"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--command", "no-such-program"], 1, "no-such-program"),
        (["--command", "a 'b"], 2, "is no command line: No closing quotation"),
        (["proc.agent_code:Teller", "--command", "true"], 2, "name one of the two"),
        ([], 2, "name one of the two"),
    ],
)
def test_what_is_no_harness_is_named(words: list[str], code: int, told: str) -> None:
    done = subprocess.run(
        [*MILEPOST, "agent-check", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done
