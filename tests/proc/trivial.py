"""Actors that do next to nothing, each a way in which a real one can behave.

`[custom.NAME] core = "proc.trivial:idle"`; imported by child processes, so it stays light.
"""

# ruff: noqa: ARG002 - cores that ignore the time are still cores

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from milepost.actors.context import ActorContext
from milepost.actors.effects import Effect, Event, Fail, Received, Reply, Tell, Wake, Woken
from milepost.messages.bulk import Bulk
from milepost.messages.publisher import BucketReady
from milepost.messages.supervisor import (
    Drain,
    Drained,
    EventReported,
    GuardTripped,
    PeerRestarted,
    PortOpened,
    ResourceTaken,
    StepRecorded,
    WorkFinished,
)


class Idle:
    """Waits to be stopped; drains at once."""

    def __init__(self, context: ActorContext) -> None:
        self.name = context.name
        self.run_folder = context.run_folder
        self.options: dict[str, Any] = context.topology.custom[context.spec.kind].options
        self.incarnation = context.spec.incarnation

    def start(self, now_s: float) -> list[Effect]:
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(message=Drain(), request=request) if request is not None:
                return [*self.drain(), Reply(request, Drained(actor=self.name))]
            case Received(message=PeerRestarted() as news):
                text = f"{self.name} heard of {news.actor} {news.incarnation}"
                report = EventReported(source=self.name, kind="heard", text=text)
                return [Tell("supervisor", report)]
            case Woken():
                return self.woken(now_s)
            case _:
                return []

    def drain(self) -> list[Effect]:
        return []

    def woken(self, now_s: float) -> list[Effect]:
        return []

    def validate(self) -> None:
        return

    def statistics(self) -> dict[str, object]:
        return {"imported_torch": "torch" in sys.modules, "imported_numpy": "numpy" in sys.modules}

    def working_on(self) -> str:
        return "waits for nothing in particular"


class Worker(Idle):
    """Records steps at `options.step_s`, finishes after `options.steps`, saves when drained."""

    step = 0

    def start(self, now_s: float) -> list[Effect]:
        return [Wake("step", now_s)]

    def woken(self, now_s: float) -> list[Effect]:
        self.step += 1
        metrics = {"train/loss": 1.0 / self.step, "rollout/solved": self.step / 10}
        metrics |= dict.fromkeys(self.options.get("metrics", ()), 0.5 / self.step)
        record = StepRecorded(source=self.name, step=self.step, metrics=metrics)
        if self.step >= self.options["steps"]:
            done = WorkFinished(actor=self.name, summary={"steps": self.step})
            return [Tell("supervisor", record), Tell("supervisor", done)]
        again = Wake("step", now_s + self.options.get("step_s", 0.01))
        return [Tell("supervisor", record), again]

    def drain(self) -> list[Effect]:
        (self.run_folder / "saved").write_text(str(self.step))
        return []


class Later(Idle):
    """Does something bad `options.after_s` after the beginning of its first life."""

    def start(self, now_s: float) -> list[Effect]:
        if self.incarnation > 0 and not self.options.get("always"):
            return []
        return [Wake("bad", now_s + self.options.get("after_s", 0.05))]

    def woken(self, now_s: float) -> list[Effect]:
        match self.options["what"]:
            case "fail":
                return [Fail("out of luck")]
            case "raise":
                raise ValueError("out of bounds")
            case "leave":
                os._exit(0)
            case "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "stuck":
                time.sleep(3600)
            case "guard":
                tripped = GuardTripped(actor=self.name, guard=self.options["guard"], reason="bad")
                return [Tell("supervisor", tripped)]
        return []


class Lending(Idle):
    """Sends a large array to its peer and keeps the shared memory for the next one."""

    def start(self, now_s: float) -> list[Effect]:
        if self.name != "lending-0" or self.incarnation > 0:
            return []
        data = Bulk("uint8", (4 << 20,), bytes(4 << 20))
        bucket = BucketReady(version=1, index=0, names=("x",), tensors=(data,))
        return [Tell("lending-1", bucket)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(message=BucketReady() as bucket):
                text = f"{self.name} got {bucket.tensors[0].nbytes} bytes"
                return [Tell("supervisor", EventReported(source=self.name, kind="got", text=text))]
            case _:
                return super().handle(event, now_s)


class Parent(Idle):
    """Has processes of its own: one in its group, one that left it; and holds a sandbox."""

    def start(self, now_s: float) -> list[Effect]:
        plain = subprocess.Popen(["sleep", "600"])
        loose = subprocess.Popen(["setsid", "sleep", "600"])
        (self.run_folder / "offspring").write_text(f"{plain.pid} {loose.pid}")
        sandbox = self.run_folder / "sandbox"
        sandbox.mkdir()
        argv = ["rmdir", str(sandbox)]
        return [Tell("supervisor", ResourceTaken(actor=self.name, name="box", release=argv))]


class Forgetful(Idle):
    """Holds two sandboxes under a lease, renews one whenever it is heard, and forgets the other."""

    def start(self, now_s: float) -> list[Effect]:
        for name in ("kept", "forgotten"):
            (self.run_folder / name).mkdir()
        return [self._take("kept"), self._take("forgotten"), Wake("renew", now_s + 0.1)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Woken):
            return [self._take("kept"), Wake("renew", now_s + 0.1)]
        return super().handle(event, now_s)

    def _take(self, name: str) -> Effect:
        lease_s = {"kept": 600.0, "forgotten": 1.0}[name]
        argv = ["rmdir", str(self.run_folder / name)]
        taken = ResourceTaken(actor=self.name, name=name, release=argv, lease_s=lease_s)
        return Tell("supervisor", taken)


class Opening(Idle):
    """Has a port of its own, and passed it on to a process that nothing else ties to the run."""

    def start(self, now_s: float) -> list[Effect]:
        listener = socket.create_server(("127.0.0.1", 0))
        words = ["setsid", "sleep", "600"]
        subprocess.Popen(words, env={"PATH": os.environ["PATH"]}, pass_fds=(listener.fileno(),))
        opened = PortOpened(
            actor=self.name,
            endpoint=f"tcp://127.0.0.1:{listener.getsockname()[1]}",
            inode=os.fstat(listener.fileno()).st_ino,
        )
        listener.close()
        return [Tell("supervisor", opened)]


def opening(context: ActorContext) -> Opening:
    return Opening(context)


def forgetful(context: ActorContext) -> Forgetful:
    return Forgetful(context)


def idle(context: ActorContext) -> Idle:
    return Idle(context)


def worker(context: ActorContext) -> Worker:
    return Worker(context)


def later(context: ActorContext) -> Later:
    return Later(context)


def lending(context: ActorContext) -> Lending:
    return Lending(context)


def parent(context: ActorContext) -> Parent:
    return Parent(context)


def broken(_context: ActorContext) -> Idle:
    """Dies while it starts, with a last line."""
    raise ImportError("no module named flux_capacitor")


def deaf(context: ActorContext) -> Idle:
    """Does not stop when it is asked to."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Idle(context)
