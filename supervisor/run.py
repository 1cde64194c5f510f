"""The whole life of a run: `supervise` opens it, lets it run, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from milepost.actors.recorder.pins import pin_rings
from milepost.actors.recorder.recorder import FOLDER
from milepost.configs.spec import Address
from milepost.configs.topology import Topology
from milepost.messages.bus import Bus, BusLimits
from milepost.messages.bus.borrowing import segment_prefix
from milepost.messages.bus.broadcast import Broadcast
from milepost.messages.schema import fingerprint
from milepost.supervisor.attach import Door
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.cleanup.processes import identity_of
from milepost.supervisor.cleanup.registry import (
    Owned,
    Registry,
    identity_record,
    note,
)
from milepost.supervisor.cleanup.unfinished import RUN_FILE, SUMMARY
from milepost.supervisor.companions import Companions
from milepost.supervisor.core import SupervisorCore
from milepost.supervisor.display import Display
from milepost.supervisor.distant import DistantDoor
from milepost.supervisor.events import Broken, Interrupted
from milepost.supervisor.family import Family, RunFacts
from milepost.supervisor.folder import RunFolder
from milepost.supervisor.homes import Homes
from milepost.supervisor.outcome import Cause, Outcome, RunStatus, Verdict
from milepost.supervisor.places import PLACES, Place
from milepost.supervisor.plan import children_of
from milepost.supervisor.recording.recorder import Files, Recorder
from milepost.supervisor.recording.resume import earlier_events, earlier_statistics
from milepost.supervisor.recording.summary import summarize
from milepost.supervisor.recording.tracker import trackers_of
from milepost.supervisor.shell import Shell
from milepost.supervisor.sockets import (
    ATTACH,
    STATISTICS,
    create_folder,
    endpoint,
    remove_folder,
)

SNAPSHOT_S: Final = 1.0
BUS_CLOSE_S: Final = 0.2
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def supervise(
    topology: Topology,
    *,
    folder: RunFolder,
    resume_step: int | None = None,
    display: Display,
    place: Place | None = None,
) -> Outcome:
    """Start every actor of a checked topology, watch them, and stop them.

    SIGINT, SIGTERM or SIGHUP once drain the actors and let them save; the second one kills them at
    once. The first one never does, whatever else has begun to end the run.

    Args:
        topology: resolved and checked; nothing is checked again.
        folder: gets everything that the run writes; the caller's to close.
        resume_step: checkpoint of an earlier run in this folder to go on from; 0 when that had
            none yet: the run begins again, and its journals with it. None for a new run.
        display: shown steps, events and snapshots.
        place: where processes are started; left out, what `system.place` names.

    Returns:
        How the run ended; the same is in RUN/summary.json. No process, socket or shared memory
        of the run is left.

    Raises:
        OSError: the run folder cannot be written, or `system.host` not be bound.
        AddressError: the supervisor's mailbox cannot be bound.
        ConfigError: a tracking service is asked for whose package is not installed.
    """
    starter = place or PLACES[topology.system.place]()
    return await _Run(topology, folder, resume_step, display).live(starter)


class _Run:
    """One run; its parts in the order in which they are opened."""

    def __init__(
        self, topology: Topology, folder: RunFolder, resume_step: int | None, display: Display
    ) -> None:
        self._topology = topology
        self._folder = folder
        self._resume_step = resume_step
        self._display = display
        self._run_id = secrets.token_hex(8)
        self._started_at = time.time()
        self._trackers = trackers_of(topology.tracking)
        self._plans = {plan.name: plan for plan in children_of(topology)}
        self._owned = Owned()
        self._unwritten = ""
        self._about: dict[str, Any] = {
            "name": topology.run.name,
            "run_id": self._run_id,
            "folder": str(folder.path),
            "pid": os.getpid(),
            "steps": topology.run.steps,
            "resumed_from": resume_step,
        }

    async def live(self, place: Place) -> Outcome:
        """Open everything, wait for the verdict, close everything, report."""
        self._folder.forget_summary()
        self._folder.write_beginning(self._topology, self._plans)
        self._folder.keep_reserve()
        sockets = self._own_sockets()
        try:
            return await self._live(sockets, place)
        finally:
            remove_folder(sockets)

    async def _live(self, sockets: Path, place: Place) -> Outcome:
        timeouts, now_s = self._topology.system.timeouts, time.monotonic()
        core = SupervisorCore(tuple(self._plans.values()), timeouts, fingerprint(), now_s)
        homes = Homes.open(self._topology.system, sockets, self._plans)
        with contextlib.ExitStack() as opened:
            opened.callback(homes.close)
            distant = self._bind_distant(homes, opened)
            # At step 0 no checkpoint is loaded; the weights are those that the run began with.
            step = self._resume_step or None
            facts = RunFacts(self._topology, self._run_id, homes, step, self._owned)
            async with self._shell(core, facts, place, sockets) as (shell, family):
                home = Address(endpoint=endpoint(sockets, ATTACH))
                doors = [await Door.open(home, self._run_id, shell, self._folder.path)]
                doors += [await one.open(shell, self._folder.path) for one in distant]
                self._write_run_file(sockets, ended=False)
                shell.start()
                spoken = Broadcast(endpoint(sockets, STATISTICS), SUPERVISOR, self._run_id)
                show = asyncio.create_task(_show(shell, spoken), name="show")
                look = asyncio.create_task(_look_after(self._folder, shell), name="look after")
                verdict = await self._verdict(shell, family)
                show.cancel()
                look.cancel()
                await spoken.close()
                await asyncio.gather(*(door.close() for door in doors))
        return self._report(verdict, core, shell, sockets)

    def _own_sockets(self) -> Path:
        """Make the socket folder; before anything else exists, it is in the registry."""
        sockets = create_folder(self._run_id)
        identity = identity_of(os.getpid())
        assert identity is not None, "this process is alive"
        records: tuple[dict[str, Any], ...] = (
            {"kind": "run", "run_id": self._run_id, "supervisor": identity_record(identity)},
            {"kind": "folder", "path": str(sockets)},
            {"kind": "segments", "prefix": segment_prefix(self._run_id)},
        )
        try:
            Registry(self._folder.path).mend()
            self._own(*records)
        except OSError:
            remove_folder(sockets)
            raise
        return sockets

    def _bind_distant(self, homes: Homes, opened: contextlib.ExitStack) -> list[DistantDoor]:
        """A second door for clients, where the run is on tcp; every port goes into the registry."""
        system = self._topology.system
        is_tcp = system.transport == "tcp"
        distant = [DistantDoor.bind(system.host, self._run_id)] if is_tcp else []
        for one in distant:
            opened.callback(one.close)
        self._own(*homes.records(), *(one.record() for one in distant))
        return distant

    def _own(self, *records: dict[str, Any]) -> None:
        """Write down what the run owns from now on."""
        if records:
            Registry(self._folder.path).append(*records)
        for record in records:
            note(self._owned, record)

    @contextlib.asynccontextmanager
    async def _shell(
        self, core: SupervisorCore, facts: RunFacts, place: Place, sockets: Path
    ) -> AsyncIterator[tuple[Shell, Family]]:
        """Bus, recorder, family and shell; on leaving, nothing of them is left."""
        async with contextlib.AsyncExitStack() as stack:
            bus = await Bus.open(
                name=SUPERVISOR,
                incarnation=0,
                run_id=self._run_id,
                addresses=facts.homes.addresses,
                limits=BusLimits(**msgspec.structs.asdict(self._topology.system.bus)),
                secret_key=facts.homes.secret_key(SUPERVISOR),
                listen_fd=facts.homes.own_listen_fd(),
            )
            files = Files(
                self._folder.path,
                tensorboard=self._topology.tracking.tensorboard,
                resume_step=self._resume_step,
            )
            recorder = Recorder(files)
            stack.push_async_callback(self._close_recorder, recorder)
            tell_s = self._topology.system.timeouts.tell_s
            shell = Shell(core, bus, recorder, self._display, self._about, tell_s)
            family = Family(facts, self._plans, self._folder, place, shell)
            shell.family = family
            if self._resume_step is not None:
                core.losses.resumed(earlier_statistics(self._folder.path))
            if self._resume_step:
                core.ending.last_step = self._resume_step
                shell.scores.load(earlier_events(self._folder.path))
            recorder.start(lambda reason: shell.broken(_removed(self._folder) or reason))
            stack.enter_context(_signals(shell))
            stack.enter_context(_loop_errors(shell))
            receiver = asyncio.create_task(shell.receive(), name="receive")
            companions = Companions(self._folder.path, self._run_id, shell.record, self._own)
            family.registry_renewed = companions.registry_renewed
            try:
                companions.start_janitor()
                for kind, target in self._trackers.items():
                    companions.start_tracker(kind, target)
                if (prometheus := self._topology.tracking.prometheus) is not None:
                    companions.start_exporter(prometheus, endpoint(sockets, STATISTICS))
                yield shell, family
            finally:
                shell.stop_clock()
                self._folder.free_reserve()
                await shell.asking.close()
                await bus.close(deadline_s=BUS_CLOSE_S)
                await receiver
                await recorder.complete_step()
                await companions.finish_trackers()
                reaped = await family.close()
                for problem in reaped.problems:
                    shell.tell_people("left_behind", problem)
                if not reaped.problems:
                    # Else it stays, and tries once more when we are gone.
                    await companions.close()

    async def _close_recorder(self, recorder: Recorder) -> None:
        try:
            await recorder.close()
        except Exception as error:  # noqa: BLE001 - nothing that is left may stay open for it
            text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._unwritten = f"the last metrics and events cannot be written: {text}"

    async def _verdict(self, shell: Shell, family: Family) -> Verdict:
        try:
            return await shell.verdict
        except Exception as error:  # noqa: BLE001 - the top of this process: the run is told why
            await family.kill_all()
            text = f"the supervisor failed: {type(error).__name__}: {error}"
            lines = "".join(traceback.format_exception(error)).splitlines()
            return Verdict(RunStatus.FAILED, Cause(SUPERVISOR, text, log_tail=tuple(lines)))

    def _report(
        self, verdict: Verdict, core: SupervisorCore, shell: Shell, sockets: Path
    ) -> Outcome:
        restarts = {
            child.name: child.num_restarts
            for child in core.book.children.values()
            if child.num_restarts
        }
        summary = summarize(
            verdict,
            shell.scores,
            about=self._about,
            restarts=restarts,
            statistics={
                child.name: {k: v for k, v in child.heartbeat.statistics.items() if k != "bus"}
                for child in core.book.children.values()
                if child.heartbeat is not None
            },
            started_at=self._started_at,
            ended_at=time.time(),
        )
        if verdict.status in {RunStatus.FAILED, RunStatus.GUARD} and verdict.cause is not None:
            pins_max = self._topology.system.recorder.pins_max
            folder, text = self._folder.path / FOLDER, verdict.cause.text
            for problem in pin_rings(folder, self._run_id, text, pins_max):
                sys.stderr.write(f"{problem}\n")
        try:
            self._folder.write_json(SUMMARY, summary)
            self._write_run_file(sockets, ended=True)
        except OSError as error:
            self._unwritten = f"{SUMMARY} cannot be written: {error}"
            sys.stderr.write(f"{orjson.dumps(summary, default=repr).decode()}\n")
        if self._unwritten:
            cause = verdict.cause or Cause(SUPERVISOR, self._unwritten)
            verdict = replace(verdict, status=RunStatus.FAILED, cause=cause)
        return Outcome(verdict, summary)

    def _write_run_file(self, sockets: Path, *, ended: bool) -> None:
        facts = {
            **self._about,
            "endpoint": endpoint(sockets, ATTACH),
            "statistics": endpoint(sockets, STATISTICS),
            "started_at": self._started_at,
            "ended": ended,
        }
        self._folder.write_json(RUN_FILE, facts)


async def _show(shell: Shell, broadcast: Broadcast) -> None:
    while True:
        shell.show_snapshot()
        if broadcast.is_heard:
            await broadcast.say(shell.snapshot())
        await asyncio.sleep(SNAPSHOT_S)


async def _look_after(folder: RunFolder, shell: Shell) -> None:
    """End the run, by name, when its folder is not there any more."""
    while True:
        if reason := await asyncio.to_thread(_removed, folder):
            shell.broken(reason)
            return
        await asyncio.sleep(SNAPSHOT_S)


def _removed(folder: RunFolder) -> str:
    """The name of that end; empty while the folder is there."""
    there = folder.is_there()
    return "" if there else f"the run folder {folder.path} was removed while the run went on"


@contextlib.contextmanager
def _signals(shell: Shell) -> Iterator[None]:
    """Signals become events, until the run is over."""
    loop = asyncio.get_running_loop()
    # `nohup` asks for a run that outlives its terminal.
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    taken = [number for number in SIGNALS if number != signal.SIGHUP or not nohup]
    for number in taken:
        loop.add_signal_handler(number, shell.handle, Interrupted(number.name))
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _loop_errors(shell: Shell) -> Iterator[None]:
    """An exception that nobody waits for ends the run, instead of being printed and forgotten."""
    loop = asyncio.get_running_loop()

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        shell.handle(Broken(f"{context['message']}: {error!r}" if error else context["message"]))

    loop.set_exception_handler(report)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
