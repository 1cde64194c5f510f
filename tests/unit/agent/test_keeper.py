"""What a guest's machine keeps of leases: everything taken and not given back, whole words only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from milepost.actors.agent.sandbox import keeper
from milepost.actors.agent.sandbox.keeper import give_back, left

TAKE = '["take", "{0}", ["rm", "-rf", "--", "/tmp/{0}"]]\n'


def test_what_was_taken_and_not_released_is_left() -> None:
    lines = [TAKE.format("a"), TAKE.format("b"), '["release", "a"]\n', '["release", "never"]\n']
    assert left(lines) == ({"b": ["rm", "-rf", "--", "/tmp/b"]}, [])


def test_half_a_word_of_a_killed_writer_counts_for_nothing() -> None:
    """It is written before the folder is made, so there is no folder either."""
    taken, senseless = left([TAKE.format("a"), TAKE.format("b")[:20]])
    assert (taken, senseless) == ({"a": ["rm", "-rf", "--", "/tmp/a"]}, [])


def test_words_of_no_lease_are_a_mistake_of_ours_that_costs_no_other_lease() -> None:
    """The keeper died of them, and everything that was taken stayed behind."""
    senseless = ['["keep", "a"]\n', "}\n"]
    assert left([senseless[0], TAKE.format("b"), senseless[1]])[1] == senseless
    words = [sys.executable, "-I", "-S", keeper.__file__]
    lines = f'["keep", "a"]\n["take", "b", ["{sys.executable}", "-c", "print(12321)"]]\n'
    done = subprocess.run(
        words, check=False, input=lines, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (keeper.UNABLE, "12321\n")
    assert 'no word of a lease: \'["keep", "a"]\\n\'' in done.stderr


def test_a_command_that_works_is_run_once() -> None:
    assert give_back(["true"]) == 0


@pytest.mark.parametrize("command", [["/no/such/program"], ["sleep", "86396.5"]])
def test_a_command_that_cannot_be_run_or_hangs_does_not_hold_up_the_others(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "COMMAND_S", 0.05)
    assert give_back(command) == keeper.UNABLE
