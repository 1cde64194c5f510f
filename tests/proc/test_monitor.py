"""A monitor beside real processes: it comes late, stands still, is killed, and outlives the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from proc.runs import Running, custom, environment, running, topology

CODE = "import sys; from milepost.launch.cli import main; sys.exit(main())"
WORKER = custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)
ACTORS = WORKER + custom("idle", "idle")


def words(run: Running, *options: str) -> list[str]:
    return [sys.executable, "-P", "-c", CODE, "monitor", str(run.folder), *options]


@contextmanager
def going_on(folder: Path) -> Iterator[Running]:
    """A run that has been going on for a while: whoever comes now comes late."""
    with running(folder, topology(ACTORS)) as run:
        run.until("step 12")
        yield run


@contextmanager
def watching(run: Running, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A monitor in a pipe."""
    monitor = subprocess.Popen(
        words(run, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield monitor
    finally:
        monitor.kill()
        monitor.communicate()


def line_with(monitor: subprocess.Popen[str], texts: Sequence[str]) -> str:
    """Read on until a line has all of these; the test's own deadline bounds it."""
    assert monitor.stdout is not None
    seen = []
    for line in monitor.stdout:
        seen.append(line)
        if all(text in line for text in texts):
            return line
    raise AssertionError(f"no line has {texts}:\n{''.join(seen)}")


def step_of(line: str) -> int:
    return int(line.partition("step ")[2].partition("/")[0])


def test_a_monitor_in_a_pipe_tells_the_run_to_its_end(tmp_path: Path) -> None:
    """It needs no option, since standard output is no terminal, and it tells what was before."""
    with going_on(tmp_path) as run, watching(run, "--every", "0.5") as monitor:
        line_with(monitor, ["supervisor begun: all actors are ready"])
        first = line_with(monitor, ["running", "step ", "C1 not measured", "slowest loop"])
        assert step_of(first) >= 12
        assert step_of(line_with(monitor, ["step "])) >= step_of(first)
        run.signal(signal.SIGINT)
        line_with(monitor, ["the run has ended: stopped"])
        assert monitor.wait() == 0
        assert run.end() == 1


def test_one_object_says_all_of_a_run_that_goes_on_and_of_one_that_has_ended(
    tmp_path: Path,
) -> None:
    with going_on(tmp_path) as run:
        # Seconds of steps, so that the worker's word of its links is younger than their first use.
        run.until("step 80")
        for phase in ("running", "stopped"):
            done = subprocess.run(
                words(run, "--json"), capture_output=True, text=True, env=environment(), check=False
            )
            assert done.returncode == 0, done.stderr
            facts = json.loads(done.stdout)
            assert facts["run"]["phase"] == phase
            assert facts["run"]["step"] >= 12
            assert {row["name"] for row in facts["actors"]} >= {"worker-0", "idle-0"}
            assert facts["events"][0]["kind"] == "begun"
            assert [lamp["colour"] for lamp in facts["contracts"]] == ["grey"] * 4
            if phase == "running":
                assert {queue["name"] for queue in facts["queues"]} >= {"worker-0 -> supervisor"}
                run.signal(signal.SIGINT)
                assert run.end() == 1
        assert facts["run"]["ending"].startswith("the run has ended: stopped after")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda one: one.name)
def test_a_monitor_that_stands_still_or_dies_is_not_missed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Sixty steps are taken while it is stopped; then it goes on with the newest picture."""
    with going_on(tmp_path) as run, watching(run, "--every", "0.2") as monitor:
        at = step_of(line_with(monitor, ["running", "step "]))
        monitor.send_signal(number)
        run.until(f"step {at + 60}")
        assert run.process.poll() is None
        assert "late" not in run.kinds()
        if number == signal.SIGSTOP:
            monitor.send_signal(signal.SIGCONT)
            assert monitor.stdout is not None
            while step_of(line_with(monitor, ["running", "step "])) < at + 60:
                pass
        run.signal(signal.SIGINT)
        assert run.end() == 1


def test_a_supervisor_that_stands_still_is_said_to_be_silent_and_heard_again(
    tmp_path: Path,
) -> None:
    with going_on(tmp_path) as run, watching(run, "--every", "0.5") as monitor:
        line_with(monitor, ["running", "step "])
        run.signal(signal.SIGSTOP)
        line_with(monitor, [f"the supervisor (pid {run.process.pid}) has said nothing for"])
        run.signal(signal.SIGCONT)
        line_with(monitor, ["running", "step "])
        assert monitor.poll() is None


def test_a_supervisor_that_was_killed_is_told_with_what_cleaned_up_after_it(
    tmp_path: Path,
) -> None:
    """Its janitor writes the summary; the monitor waits for it and says how the run ended."""
    with going_on(tmp_path) as run, watching(run, "--every", "0.5") as monitor:
        line_with(monitor, ["running", "step "])
        os.kill(run.process.pid, signal.SIGKILL)
        line_with(monitor, ["the run has ended: killed", "the supervisor was killed"])
        assert monitor.wait() == 0


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    for options, code, text in (
        ([str(tmp_path)], 3, "holds no run"),
        ([str(tmp_path), "--run", str(tmp_path)], 2, "RUN is named twice"),
        ([str(tmp_path), "--every", "0"], 2, "--every = 0, no seconds from 0.2 on"),
        ([str(tmp_path), "--every", "nan"], 2, "--every = nan"),
    ):
        command = [sys.executable, "-P", "-c", CODE, "monitor", *options]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False
        )
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert text in done.stderr


def test_only_the_screen_imports_textual(tmp_path: Path) -> None:
    """It takes half a second; a pipe, and every other command, has no use for it."""
    code = (
        "import sys\n"
        "from milepost.launch.commands import monitor, ps\n"
        "from milepost.launch.monitor import facts, feed, plain, view\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('textual', 'torch')]\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
