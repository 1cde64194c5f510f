"""Real processes: clients come, look, go and crash, and the run does not notice."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from proc.runs import Running, custom, environment, leftovers, running, topology

WORKER = custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)
ACTORS = WORKER + custom("idle", "idle")


def milepost(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "import sys; from milepost.launch.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=cwd,
        env=environment(),
    )


@contextmanager
def going_on(folder: Path, actors: str = ACTORS) -> Iterator[Running]:
    """A run whose actors have beaten at least once since they began."""
    with running(folder, topology(actors)) as run:
        run.until("step 28")
        yield run


def test_the_attached_commands_tell_the_state_of_the_run(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        where = ("--run", str(run.folder))
        ps = milepost("ps", *where)
        assert ps.returncode == 0, ps.stderr
        head, _, columns, *rows = ps.stdout.splitlines()
        assert head.startswith("trivial  running for ")
        assert columns.split()[:3] == ["actor", "state", "pid"]
        names = ["worker-0", "idle-0", "supervisor"]
        assert [row.split()[:2] for row in rows] == [[name, "running"] for name in names]
        assert rows[1].endswith("waits for nothing in particular")
        facts = json.loads(milepost("ps", "--json", *where).stdout)
        pids = {actor["actor"]: actor["pid"] for actor in facts["actors"]}
        assert pids["idle-0"] == run.children()["idle-0"].pid

        queues = milepost("queues", "--interval", "1.2", *where)
        assert queues.returncode == 0, queues.stderr
        lines = {line.split("  ")[0]: line.split() for line in queues.stdout.splitlines()}
        assert lines["worker-0 -> supervisor"][-1] == "ok"
        assert float(lines["worker-0 -> supervisor"][-2]) > 1.0, "steps a second"
        assert "inbox of supervisor" in lines

        why = milepost("why", "idle-0", *where)
        assert "idle-0 (running): waits for nothing in particular" in why.stdout
        unknown = milepost("why", "idle-7", *where)
        assert unknown.returncode == 1
        assert unknown.stderr == "error: no actor 'idle-7', there are: worker-0, idle-0\n"

        tail = milepost("tail", "metrics", "--lines", "2", "--no-follow", *where)
        steps = [json.loads(line)["step"] for line in tail.stdout.splitlines()]
        assert steps[1] == steps[0] + 1 >= 28

        for command in ("why", "stacks", "tail"):
            refused = milepost(command, "idle-7", *where)
            assert (refused.returncode, refused.stdout) == (1, ""), command
            assert "there are: " in refused.stderr
        objects = {
            ("queues", "--interval", "0.2"): {"queues"},
            ("why",): {"run", "actors", "trouble", "missing"},
            ("stacks", "idle-0"): {"actor", "stacks"},
            ("tail", "idle-0", "--no-follow", "--lines", "0"): set(),
        }
        for words, keys in objects.items():
            answer = milepost(*words, "--json", *where)
            assert answer.returncode == 0, answer.stderr
            assert set(json.loads(answer.stdout or "{}")) == keys

        stacks = milepost("stacks", "idle-0", *where)
        assert "MainThread" in stacks.stdout
        assert "milepost/actors" in stacks.stdout.replace("/actors/", "milepost/actors/")


def test_watching_is_a_picture_a_second_until_the_run_ends(tmp_path: Path) -> None:
    """Published once for all who watch; a watcher that dies is not missed."""
    words = (["ps", "--watch", "--json"], ["queues", "--watch"], ["why", "idle-0", "--watch"])
    code = "import sys; from milepost.launch.cli import main; sys.exit(main())"
    with going_on(tmp_path) as run:
        watchers = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", code, *each, "--run", str(run.folder)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for each in words
        ]
        ps, queues, why = watchers
        assert ps.stdout is not None
        assert queues.stdout is not None
        first, second = (json.loads(ps.stdout.readline()) for _ in range(2))
        assert second["run"]["step"] > first["run"]["step"]
        shown = "".join(queues.stdout.readline() for _ in range(15))
        assert shown.count("inbox of supervisor") >= 2
        why.kill()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        for watcher in watchers:
            _, said = watcher.communicate(timeout=30)
            assert watcher is why or "has ended" in said
        assert [watcher.returncode for watcher in watchers] == [0, 0, -signal.SIGKILL]
        assert milepost("ps", "--watch", "--run", str(run.folder)).returncode == 3


def test_a_stuck_actor_still_gives_its_stacks(tmp_path: Path) -> None:
    """Its loop cannot answer, so a signal makes it write them; the line to blame is in them."""
    stuck = custom("later", "later", 'what = "stuck"\nafter_s = 1.0')
    text = topology(WORKER + stuck).replace("heartbeat_s = 4.0", "heartbeat_s = 60.0")
    with running(tmp_path, text) as run:
        run.until("step 45")
        stacks = milepost("stacks", "later-0", "--run", str(run.folder))
        assert stacks.returncode == 0, stacks.stderr
        assert "later-0 does not answer" in stacks.stdout
        assert "trivial.py" in stacks.stdout
        assert "in woken" in stacks.stdout
        assert run.process.poll() is None


def test_stop_drains_saves_and_waits_for_the_end(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        stop = milepost("stop", "--reason", "enough", "--run", str(run.folder))
        assert stop.returncode == 0, stop.stderr
        assert stop.stdout == f"{run.folder} is ended\n"
        assert run.end(5) == 1
        assert run.summary["cause"]["text"] == "enough"
        assert (run.folder / "saved").exists()


def test_stop_at_once_saves_nothing(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        assert milepost("stop", "--at-once", "--run", str(run.folder)).returncode == 0
        assert run.end(5) == 1
        assert not (run.folder / "saved").exists()
        assert leftovers(run.run_id, run.sockets) == []


def test_a_run_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    nothing = milepost("ps", "--run", str(tmp_path))
    assert nothing.returncode == 3
    assert "holds no run" in nothing.stderr
    assert milepost("ps", cwd=tmp_path).returncode == 3
    with going_on(tmp_path) as run:
        run.signal(signal.SIGINT)
        run.end()
        ended = milepost("why", "--run", str(run.folder))
        assert ended.returncode == 3
        assert "has ended" in ended.stderr


def test_the_only_run_needs_no_name_and_several_do(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "a").mkdir(parents=True)
    (runs / "b").mkdir()
    with going_on(runs / "a") as one:
        (runs / "one").symlink_to(one.folder)
        assert milepost("ps", cwd=tmp_path).returncode == 0
        with going_on(runs / "b") as two:
            (runs / "two").symlink_to(two.folder)
            both = milepost("ps", cwd=tmp_path)
            assert both.returncode == 2
            assert "2 runs go on, name one with --run: runs/one, runs/two" in both.stderr


def test_reap_refuses_while_the_run_goes_on(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        refused = milepost("reap", str(run.folder))
        assert refused.returncode == 2
        assert "is run by process" in refused.stderr
        run.signal(signal.SIGINT)
        run.end()
        assert milepost("reap", str(run.folder)).stdout == "nothing was left\n"


def test_junk_and_vanishing_clients_do_not_disturb_the_run(tmp_path: Path) -> None:
    """Strangers' bytes, clients that never read, and hundreds that come and vanish."""
    with going_on(tmp_path) as run:
        endpoint = run.run_facts["endpoint"]
        context = zmq.Context()
        for number in range(200):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 200)
            socket.setsockopt(zmq.SNDHWM, 10)
            socket.connect(endpoint)
            socket.send_multipart([secrets.token_bytes(number + 1) for _ in range(number % 5 + 1)])
            socket.close()
        context.term()
        client = subprocess.Popen(
            [
                *(sys.executable, "-P", "-c"),
                "import sys; from milepost.launch.cli import main; sys.exit(main())",
                *("tail", "metrics", "--run", str(run.folder)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert client.stdout is not None
        assert client.stdout.readline().startswith(b"{")
        client.kill()
        client.communicate()
        assert milepost("ps", "--run", str(run.folder)).returncode == 0
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        assert leftovers(run.run_id, run.sockets) == []


def test_following_a_log_ends_with_ctrl_c_as_following_anything_does(tmp_path: Path) -> None:
    """There is no other way to end it before the run: nothing has failed."""
    with going_on(tmp_path) as run:
        # A shell has what it starts in the background ignore it; this test may be started so.
        hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{hear}; import sys; from milepost.launch.cli import main; sys.exit(main())"
        words = ("tail", "metrics", "--run", str(run.folder))
        following = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert following.stdout is not None
        assert following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _, told = following.communicate(timeout=30)
        assert (following.returncode, told) == (0, b"")
