"""Real processes: somebody looks at live traffic, and the run does not notice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from proc.runs import custom, environment, leftovers, running, topology
from proc.test_supervisor_attach import WORKER, going_on, milepost

TAP = "import sys; from milepost.launch.cli import main; sys.exit(main())"
FAST = custom("worker", "worker", "steps = 1000000\nstep_s = 0.004", significant=True)


def test_a_tap_shows_the_decoded_messages_of_an_edge(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        where = ("--run", str(run.folder))
        found = milepost(
            *("tap", "worker-0 -> supervisor", "--where", "type == 'StepRecorded' and step >= 3"),
            *("--decode", "--json", "--limit", "4", *where),
        )
        assert found.returncode == 0, found.stderr
        shown = [json.loads(line) for line in found.stdout.splitlines()]
        steps = [one["fields"]["step"] for one in shown]
        assert steps == list(range(steps[0], steps[0] + 4)), "each message once, in order"
        assert {(one["source"], one["to"], one["kind"]) for one in shown} == {
            ("worker-0", "supervisor", "tell")
        }
        assert shown[0]["fields"]["metrics"]["train/loss"] == 1 / steps[0]

        text = milepost("tap", "* <-> idle-?", "--limit", "1", "--decode", *where)
        assert text.returncode == 0, text.stderr
        head, *fields = text.stdout.splitlines()
        assert "idle-0 -> supervisor  tell Heartbeat" in head
        assert "    actor = 'idle-0'" in fields


def test_a_tap_of_nothing_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        where = ("--run", str(run.folder))
        edge = milepost("tap", "worker-1 -> supervisor", *where)
        assert edge.returncode == 2
        assert "no actor is called `worker-1` at EDGE, did you mean worker-0" in edge.stderr
        field = milepost("tap", "worker-0 -> *", "--where", "grup_id > 3", *where)
        assert field.returncode == 2
        assert (
            "no message has a field `grup_id` at --where, did you mean `group_id`" in field.stderr
        )
    assert milepost("tap", "a -> b", "--run", str(tmp_path)).returncode == 3


def test_tappers_that_stand_still_or_die_cost_the_run_nothing(tmp_path: Path) -> None:
    """More messages than a tap keeps, and nobody reads it: they are dropped, and that is told when
    the reader comes back; the actor and its supervisor never wait."""
    with running(tmp_path, topology(FAST)) as run:
        run.begun()
        tappers = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", TAP, "tap", "worker-0 -> *", "--run", str(run.folder)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
            )
            for _ in range(2)
        ]
        slow, dying = tappers
        for tapper in tappers:
            assert tapper.stdout is not None
            assert b"worker-0 -> supervisor" in tapper.stdout.readline()
        slow.send_signal(signal.SIGSTOP)
        dying.kill()
        before = len(run.lines("metrics.jsonl"))
        until = milepost("tap", "worker-0 -> *", "--limit", "600", "--run", str(run.folder))
        assert until.returncode == 0, until.stderr
        assert len(run.lines("metrics.jsonl")) >= before + 600, "the run went on meanwhile"
        slow.send_signal(signal.SIGCONT)
        assert slow.stdout is not None
        assert slow.stderr is not None
        # It shows what it had before it tells what it missed, and that fills a pipe.
        reader = threading.Thread(target=slow.stdout.read)
        reader.start()
        assert b"copied" in slow.stderr.readline()
        slow.kill()
        reader.join()
        for tapper in tappers:
            tapper.communicate()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        assert leftovers(run.run_id, run.sockets) == []


def test_a_tap_ends_with_the_run(tmp_path: Path) -> None:
    with running(tmp_path, topology(WORKER)) as run:
        run.begun()
        tapper = subprocess.Popen(
            [sys.executable, "-P", "-c", TAP, "tap", "worker-0 -> *", "--run", str(run.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert tapper.stdout is not None
        assert tapper.stdout.readline()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        _, said = tapper.communicate(timeout=30)
        assert b"the run does not answer any more" in said
        assert tapper.returncode == 0
