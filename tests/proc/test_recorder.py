"""Real processes: what the flight recorder still holds after each kind of death."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path

from proc.runs import Running, custom, running, topology
from proc.test_supervisor_attach import milepost

from milepost.actors.recorder.desk import WAIT_S
from milepost.actors.recorder.reading import read_recordings

WORKER = custom("worker", "worker", "steps = 1000000\nstep_s = 0.02", significant=True)
STEPS_LOST_MAX = math.ceil(WAIT_S / 0.02) + 1
IDLE = custom("idle", "idle")
DEADLINE_S = 30.0


def steps_recorded(run: Running) -> list[int]:
    """Steps that the worker told the supervisor of, by its own recorder."""
    (found,) = read_recordings(run.folder / "recorder", "worker-0")
    told = (each for line in found.lines for each in line.decisions if each.type == "StepRecorded")
    return [each.facts["step"] for each in told]


def steps_made(run: Running) -> list[int]:
    """The same, those of the last moment among them: a pin is written of all that there is."""
    assert milepost("pin", str(run.folder), "worker-0").returncode == 0
    return steps_recorded(run)


def test_the_ring_of_a_killed_actor_holds_all_but_its_last_moment(tmp_path: Path) -> None:
    """This is what a flight recorder is for: SIGKILL gives nobody a chance to write anything.

    However late the loop of a busy machine comes to them, its timers end in the order in which
    they are due: that of the recorder before that of a step behind it.
    """
    with running(tmp_path, topology(WORKER + IDLE)) as run:
        run.begun()
        run.until("step 12")
        run.children()["worker-0"].kill()
        assert run.end() == 1
        heard = [line["step"] for line in run.lines("metrics.jsonl")]
        steps = steps_recorded(run)
        assert steps == list(range(1, len(steps) + 1)), "every line is whole, none is missing"
        assert heard[-1] >= 12
        assert steps[-1] >= heard[-1] - STEPS_LOST_MAX, "it lost more than a moment"


def test_the_recorders_of_a_run_that_failed_are_pinned(tmp_path: Path) -> None:
    """Resuming it does not overwrite what led to its failure."""
    with running(tmp_path, topology(WORKER + IDLE)) as run:
        run.begun()
        run.until("step 3")
        run.children()["worker-0"].kill()
        assert run.end() == 1
        (idle,) = read_recordings(run.folder / "recorder", "idle-0")
        name = f"idle-0-0.{idle.run_id}.pin-0.zst"
        assert idle.pins == {name: "worker-0 was killed by SIGKILL"}


def test_the_death_of_one_actor_pins_the_recorders_of_those_that_go_on(tmp_path: Path) -> None:
    again = custom("again", "idle", restart='policy = "permanent"\nbackoff_s = 0.1')
    with running(tmp_path, topology(WORKER + again)) as run:
        run.begun()
        run.children()["again-0"].kill()
        run.until("incarnation 1 starts")
        until_s = time.monotonic() + DEADLINE_S
        while not (pins := list((run.folder / "recorder").glob("worker-0-0.*.pin-0.zst"))):
            assert time.monotonic() < until_s, "nobody pins"
            run.until("step ")
        (worker,) = read_recordings(run.folder / "recorder", "worker-0")
        assert worker.pins[pins[0].name].startswith("again-0 restarted: again-0 was killed")


def test_a_core_that_raises_tells_its_story_in_the_log_and_in_the_first_cause(
    tmp_path: Path,
) -> None:
    raising = custom("later", "later", 'what = "raise"', significant=True)
    with running(tmp_path, topology(raising)) as run:
        assert run.end() == 1
        cause = run.summary["cause"]
        assert cause["text"].endswith("exited with code 1: ValueError: out of bounds")
        told = "\n".join(cause["log_tail"])
        assert "last lines of later-0 (2 of 2 lines):" in told
        assert "later-0 #1" in told
        assert "woken [bad]: ValueError: out of bounds" in told
        (found,) = read_recordings(run.folder / "recorder", "later-0")
        first, *_ = found.pins.values()
        assert first == "ValueError: out of bounds"


def test_pins_are_written_when_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, topology(WORKER + IDLE)) as run:
        run.begun()
        done = milepost("pin", str(run.folder), "idle-0", "--reason", "a look")
        assert done.returncode == 0, done.stderr
        (pin,) = (run.folder / "recorder").glob("idle-0-0.*.pin-0.zst")
        assert done.stdout.strip() == str(pin)
        every = milepost("pin", "--run", str(run.folder))
        assert len(every.stdout.splitlines()) == 2
        unknown = milepost("pin", str(run.folder), "idle-7")
        assert unknown.returncode == 1
        assert "no actor 'idle-7', there are: worker-0, idle-0" in unknown.stderr


def num_steps(run: Running) -> int:
    return len(run.lines("metrics.jsonl"))


def until_more_than(run: Running, count: int) -> None:
    """Wait until the worker has told of further steps."""
    until_s = time.monotonic() + DEADLINE_S
    while num_steps(run) <= count:
        assert time.monotonic() < until_s, "the worker does not go on"
        run.until("step ")


def test_a_frozen_actor_stands_still_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with running(tmp_path, topology(WORKER + IDLE)) as run:
        run.begun()
        run.until("step 3")
        frozen = milepost("freeze", str(run.folder), "worker-0", "--seconds", "25")
        assert frozen.returncode == 0, frozen.stderr
        assert frozen.stdout.strip() == "frozen for 25 s: worker-0"
        # Its answer came after its last step; what it told before lies in metrics.jsonl soon.
        why = milepost("why", "worker-0", "--run", str(run.folder))
        assert why.returncode == 0, why.stderr
        before = steps_made(run)
        again = milepost("freeze", str(run.folder), "worker-0")
        assert (again.returncode, again.stdout) == (1, "")
        assert "worker-0: it is frozen already" in again.stderr
        too_long = milepost("freeze", str(run.folder), "idle-0", "--seconds", "31")
        assert "it can be frozen for 30 s since system.timeouts.ask_s = 60" in too_long.stderr
        assert steps_made(run) == before, "half a second of steps of 20 ms, and none was made"
        thawed = milepost("thaw", str(run.folder))
        assert thawed.stdout.strip() == "thawed: worker-0"
        until_more_than(run, len(before) + 1)
        run.signal(signal.SIGINT)
        assert run.end() == 1
        heard = [line["step"] for line in run.lines("metrics.jsonl")]
        assert heard == list(range(1, len(heard) + 1)), "no step is missing or told twice"
        kinds = run.kinds()
        assert kinds.index("frozen") < kinds.index("thawed")
        events = {event["kind"]: event["text"] for event in run.lines("events.jsonl")}
        assert "worker-0 goes on: milepost thaw" in events["thawed"]


def test_a_hold_that_nobody_ends_ends_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, topology(WORKER)) as run:
        run.begun()
        run.until("step 3")
        assert milepost("freeze", str(run.folder), "--seconds", "1").returncode == 0
        until_more_than(run, len(steps_made(run)) + 1)
        thawed = [event for event in run.lines("events.jsonl") if event["kind"] == "thawed"]
        assert "worker-0 goes on: its time was over" in thawed[0]["text"]


def test_a_frozen_run_stops_when_it_is_told_to(tmp_path: Path) -> None:
    """The order to drain thaws; nobody waits for a hold to end."""
    with running(tmp_path, topology(WORKER + IDLE)) as run:
        run.begun()
        assert milepost("freeze", str(run.folder)).returncode == 0
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        assert "not_drained" not in run.kinds()
        assert (run.folder / "saved").exists()
