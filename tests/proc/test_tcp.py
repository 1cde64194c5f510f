"""Real processes over tcp: encrypted, on sockets that the supervisor bound, closed to strangers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from proc.runs import Running, custom, leftovers, running, topology, wait_gone
from proc.test_supervisor_attach import milepost

from milepost.configs.spec import ActorSpec
from milepost.messages.bus import new_keys
from milepost.supervisor.cleanup.listeners import listening
from milepost.supervisor.cleanup.registry import read_registry

TCP = '[system]\ntransport = "tcp"\n'
WORKER = custom("worker", "worker", "steps = 1000000\nstep_s = 0.02", significant=True)
RESTART = 'policy = "permanent"\nbackoff_s = 0.05'


def over_tcp(actors: str) -> str:
    return topology(actors).replace("[system.timeouts]", f"{TCP}[system.timeouts]")


def spec_of(run: Running, actor: str) -> ActorSpec:
    path = run.folder / f".milepost/specs/{actor}.json"
    assert path.stat().st_mode & 0o077 == 0, "it holds a secret"
    return msgspec.json.decode(path.read_bytes(), type=ActorSpec)


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def actor_of(run: Running, name: str) -> dict[str, Any]:
    """What `ps` knows of it; the supervisor is an actor here."""
    facts = json.loads(milepost("ps", "--json", "--run", str(run.folder)).stdout)
    if name == "supervisor":
        return dict(facts["run"])
    return dict(next(each for each in facts["actors"] if each["actor"] == name))


def strangers_at(run: Running, name: str) -> int:
    return int(actor_of(run, name)["statistics"]["bus"]["mailbox"]["strangers"])


def steps(run: Running, number: int) -> None:
    """Let the run go on for so many of its own steps; its heartbeats are sent meanwhile."""
    run.until(f"step {len(run.lines('metrics.jsonl')) + number}")


def knock(endpoint: str, server_key: str) -> list[str]:
    """Come with keys of one's own, and without any; the events that the connections end with."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ends = []
    for with_keys in (True, False):
        stranger = context.socket(zmq.DEALER)
        stranger.linger = 0
        stranger.set_hwm(10)
        stranger.reconnect_ivl = -1
        if with_keys:
            public, secret = new_keys()
            stranger.curve_serverkey = server_key.encode()
            stranger.curve_publickey = public.encode()
            stranger.curve_secretkey = secret.encode()
        refusals = (
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        monitor = stranger.get_monitor_socket(refusals)
        stranger.connect(endpoint)
        with contextlib.suppress(zmq.Again):  # refused already, and so nobody to send to
            stranger.send(b"hello", zmq.DONTWAIT)
        assert monitor.poll(10_000)
        event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
        ends.append(zmq.Event(event).name or "")
        stranger.disable_monitor()
        monitor.close(0)
        stranger.close(0)
    context.term()
    return ends


def test_a_run_over_tcp_goes_on_through_a_death_and_refuses_strangers(tmp_path: Path) -> None:
    """Every process has a port of its own before it lives; the next incarnation takes it over."""
    actors = WORKER + custom("idle", "idle", restart=RESTART)
    with running(tmp_path, over_tcp(actors)) as run:
        run.begun()
        specs = {name: spec_of(run, name) for name in ("worker-0", "idle-0")}
        home = specs["worker-0"].addresses
        assert all(address.endpoint.startswith("tcp://127.0.0.1:") for address in home.values())
        keys = {address.public_key for address in home.values()}
        assert len(keys) == 3, "a key pair each"
        assert len({one.secret_key for one in specs.values()}) == 2
        shared = specs["worker-0"].addresses["supervisor"]
        assert list(Path("/dev/shm").glob(f"*{run.run_id}*")) == []

        for name in ("supervisor", "idle-0"):
            before = strangers_at(run, name)
            ends = knock(home[name].endpoint, home[name].public_key)
            assert "HANDSHAKE_SUCCEEDED" not in ends
            with socket.create_connection(("127.0.0.1", port_of(home[name].endpoint))) as junk:
                junk.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):  # closed with our junk unread
                    assert junk.recv(1 << 16) is not None
            steps(run, 80)
            assert strangers_at(run, name) >= before + 2

        run.children()["idle-0"].kill()
        run.until("incarnation 1 starts")
        for _ in range(20):
            steps(run, 40)
            idle = actor_of(run, "idle-0")
            if idle["state"] == "running" and idle["incarnation"] == 1:
                break
        else:
            pytest.fail(f"idle-0 did not come back: {idle}")
        again = spec_of(run, "idle-0")
        assert (again.incarnation, again.addresses) == (1, home)

        listening = [
            one.laddr.port
            for one in psutil.Process(run.process.pid).net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        ]
        assert port_of(shared.endpoint) in listening
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        assert leftovers(run.run_id, run.sockets) == []
        for address in home.values():
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port_of(address.endpoint))) != 0


def test_two_runs_over_tcp_from_one_topology_never_meet(tmp_path: Path) -> None:
    """Each has ports and keys of its own; one's keys open nothing of the other's."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    text = over_tcp(custom("worker", "worker", "steps = 60\nstep_s = 0.02", significant=True))
    with running(tmp_path / "one", text) as one, running(tmp_path / "two", text) as two:
        one.begun()
        two.begun()
        mine, other = (spec_of(run, "worker-0").addresses for run in (one, two))
        endpoints = [address.endpoint for address in (*mine.values(), *other.values())]
        assert len(set(endpoints)) == 4
        keys = {address.public_key for address in (*mine.values(), *other.values())}
        assert len(keys) == 4
        assert [run.end() for run in (one, two)] == [0, 0]
        assert [len(run.lines("metrics.jsonl")) for run in (one, two)] == [60, 60]


def test_every_port_of_a_run_is_in_its_registry_and_closed_after_a_kill(tmp_path: Path) -> None:
    """A process that got away with a socket would answer for a run that is over."""
    with running(tmp_path, over_tcp(WORKER + custom("idle", "idle"))) as run:
        run.begun()
        home = spec_of(run, "worker-0").addresses
        owned = read_registry(run.folder)
        ports = {one.actor: one.endpoint for one in owned.listeners}
        assert ports.pop("attach") == run.json(".milepost/attach.json")["endpoint"]
        assert ports == {name: address.endpoint for name, address in home.items()}
        assert len(listening(owned.listeners)) == 4
        processes = list(run.children().values())
        run.signal(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
        assert wait_gone(processes) == []
        assert listening(owned.listeners) == []


def test_clients_of_another_machine_come_in_with_the_ticket_and_not_without(tmp_path: Path) -> None:
    """They see the run's address and a file that its owner gave them, and nothing else of it."""
    (tmp_path / "here").mkdir()
    with running(tmp_path / "here", over_tcp(WORKER + custom("idle", "idle"))) as run:
        run.until("step 28")
        ticket = run.folder / ".milepost/attach.json"
        assert ticket.stat().st_mode & 0o077 == 0, "it holds a secret"
        there = tmp_path / "there"
        there.mkdir()
        copy = there / "attach.json"
        copy.write_bytes(ticket.read_bytes())
        # Nothing of the run can be found from here but through the copy.
        ps = milepost("ps", "--json", "--run", str(copy), cwd=there)
        assert ps.returncode == 0, ps.stderr
        assert [each["actor"] for each in json.loads(ps.stdout)["actors"]] == ["worker-0", "idle-0"]
        for words in (("queues", "--interval", "0.2"), ("why", "idle-0"), ("stacks", "worker-0")):
            done = milepost(*words, "--run", str(copy), cwd=there)
            assert (done.returncode, done.stderr) == (0, ""), words

        known = json.loads(copy.read_text())
        _, stranger = new_keys()
        (there / "other.json").write_text(json.dumps({**known, "secret_key": stranger}))
        refused = milepost("ps", "--run", str(there / "other.json"), cwd=there)
        assert refused.returncode == 3
        assert known["endpoint"] in refused.stderr
        assert "our CURVE key is not known to the peer" in refused.stderr
        (there / "none.json").write_text("{}")
        refused = milepost("ps", "--run", str(there / "none.json"), cwd=there)
        assert (refused.returncode, "is no copy of a run's" in refused.stderr) == (3, True)

        stopped = milepost("stop", "--run", str(copy), cwd=there)
        assert stopped.returncode == 0, stopped.stderr
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        gone = milepost("ps", "--run", str(copy), cwd=there)
        assert gone.returncode == 3
