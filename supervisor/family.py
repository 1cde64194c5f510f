"""The processes of a run: started, signalled, written down, and reported when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from milepost.configs.dump import topology_hash
from milepost.configs.spec import ActorSpec
from milepost.configs.topology import Topology
from milepost.messages.bus.borrowing import owner_prefix
from milepost.messages.supervisor import PortOpened, ResourceReleased, ResourceTaken
from milepost.supervisor.cleanup.compaction import Growth, compact
from milepost.supervisor.cleanup.reaper import (
    Reaped,
    one_at_a_time,
    remove_all,
    remove_segments,
    take_away,
)
from milepost.supervisor.cleanup.registry import (
    Owned,
    Registry,
    identity_record,
    note,
    read_registry,
)
from milepost.supervisor.events import ChildExited, ChildNotStarted, ChildStarted, Event
from milepost.supervisor.folder import RunFolder
from milepost.supervisor.holdings import Holdings
from milepost.supervisor.homes import Homes
from milepost.supervisor.logs import last_lines, log_path
from milepost.supervisor.places import Exit, Order, Place, Process
from milepost.supervisor.plan import ChildPlan

SEGMENTS_S: Final = 2.0
"""A dead actor's shared memory stays for so long: peers take what had arrived from it."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What every child of the run is told.

    Attributes:
        topology: the resolved topology.
        run_id: random, new for each start of a supervisor.
        homes: where every actor and the supervisor has its mailbox.
        resume_step: checkpoint to go on from.
        owned: what the registry says so far; kept up here for the case that it is removed.
    """

    topology: Topology
    run_id: str
    homes: Homes
    resume_step: int | None
    owned: Owned


class Desk(Protocol):
    """Who hears what happens to the family: the supervisor's shell."""

    def handle(self, event: Event) -> None:
        """A child started, did not start, or ended."""
        ...

    def broken(self, reason: str) -> None:
        """The registry cannot be written."""
        ...

    def tell_people(self, kind: str, text: str) -> None:
        """Something that people should know."""
        ...


class Family:
    """Everything about processes that the supervisor's loop does.

    Args:
        facts: what every child is told.
        plans: the children by name.
        folder: the run folder.
        place: where they are started.
        desk: hears what happens.
    """

    def __init__(
        self,
        facts: RunFacts,
        plans: Mapping[str, ChildPlan],
        folder: RunFolder,
        place: Place,
        desk: Desk,
    ) -> None:
        self._facts = facts
        self._plans = plans
        self._folder = folder
        self._place = place
        self._report = desk.handle
        self._broken = desk.broken
        self._tell_people = desk.tell_people
        self._owned = facts.owned
        self._registry = Registry(folder.path)
        self._growth = Growth()
        self.registry_renewed: Callable[[], None] = lambda: None
        """Called when the registry was written anew; set once, before `start`."""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._processes: dict[str, Process] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self.holdings = Holdings(self._write_down, desk.tell_people)
        self._topology_hash = topology_hash(facts.topology)

    # ---- children ------------------------------------------------------------------------

    def start(self, actor: str, incarnation: int) -> None:
        """Start one incarnation; it is reported, and so is its end."""
        plan, log = self._plans[actor], log_path(self._folder.path, actor)
        homes = self._facts.homes
        written = log.stat().st_size if log.exists() else 0
        spec = ActorSpec(
            actor=actor,
            kind=plan.kind,
            index=plan.index,
            incarnation=incarnation,
            run_id=self._facts.run_id,
            run_folder=str(self._folder.path),
            addresses=homes.addresses,
            topology=self._facts.topology,
            topology_hash=self._topology_hash,
            secret_key=homes.secret_key(actor),
            listen_fd=homes.listen_fd(actor),
            resume_step=self._facts.resume_step,
        )
        try:
            order = Order(
                actor=actor,
                spec=self._folder.write_spec(spec),
                log=log,
                threads=plan.threads,
                run_id=self._facts.run_id,
                listen_fd=spec.listen_fd,
            )
            process = self._place.start(order)
        except OSError as error:
            self._report(ChildNotStarted(actor, incarnation, str(error)))
            return
        self._processes[actor] = process
        self._write_down(
            {
                "kind": "process",
                "actor": actor,
                "incarnation": incarnation,
                **identity_record(process.identity),
            }
        )

        def ended(done: asyncio.Future[Exit]) -> None:
            exited = done.result()
            tail = last_lines(log, since=written)
            self.holdings.release_of(actor)
            self._free_memory_of(actor, incarnation)
            self._report(ChildExited(actor, incarnation, exited.code, exited.signal, tail))

        process.ended.add_done_callback(ended)
        self._report(ChildStarted(actor, incarnation, process.identity.pid))

    def log_of(self, actor: str) -> Path:
        """Where the child's standard output and error go."""
        return log_path(self._folder.path, actor)

    async def kill_all(self) -> None:
        """Kill every child at once; used only when the core cannot decide any more."""
        for process in self._processes.values():
            process.send_signal("KILL")
        if self._processes:
            ended = [process.ended for process in self._processes.values()]
            await asyncio.wait(ended, timeout=self._facts.topology.system.timeouts.stop_s)

    def send_signal(self, actor: str, name: Literal["TERM", "KILL", "USR1"]) -> None:
        """Signal a child; nothing when it was never started or is gone."""
        if (process := self._processes.get(actor)) is not None:
            process.send_signal(name)

    def keep(self, message: ResourceTaken | ResourceReleased | PortOpened) -> None:
        """Write down (or off) what an actor holds by itself."""
        match message:
            case ResourceTaken():
                self.holdings.take(message)
            case ResourceReleased():
                self.holdings.release(message)
            case PortOpened(actor=actor, endpoint=endpoint, inode=inode):
                record = {"kind": "listener", "actor": actor, "endpoint": endpoint, "inode": inode}
                self._write_down(record)

    # ---- what outlives nobody --------------------------------------------------------------

    def _free_memory_of(self, actor: str, incarnation: int) -> None:
        prefix = owner_prefix(self._facts.run_id, actor, incarnation)

        def free() -> None:
            self._timers.remove(timer)
            self._disk.submit(remove_segments, prefix)

        timer = asyncio.get_running_loop().call_later(SEGMENTS_S, free)
        self._timers.append(timer)

    def _write_down(self, *records: dict[str, Any]) -> None:
        for record in records:
            note(self._owned, record)
        loop = asyncio.get_running_loop()
        written = loop.run_in_executor(self._disk, self._append, records)

        def check(done: asyncio.Future[str | None]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._broken(f"the registry cannot be written: {error}")
            elif (problem := done.result()) is None:
                return
            elif problem:
                self._tell_people("registry_grows", f"it cannot be written anew: {problem}")
            else:
                self.registry_renewed()

        written.add_done_callback(check)

    def _append(self, records: tuple[dict[str, Any], ...]) -> str | None:
        """On the disk's thread: why writing it anew failed, empty when it was; None: neither."""
        self._registry.append(*records)
        path = self._registry.path
        if not self._growth.is_due(path):
            return None
        problem = ""
        try:
            compact(path)
        except (OSError, ValueError) as error:
            problem = str(error)
        self._growth.tried(path)
        return problem

    async def close(self) -> Reaped:
        """Take away everything the run owns; every child has ended."""
        self._place.close()
        self.holdings.close()
        for timer in self._timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        reaped = await loop.run_in_executor(self._disk, self._take_away)
        self._disk.shutdown()
        return reaped

    def _take_away(self) -> Reaped:
        try:
            with one_at_a_time(self._folder.path):
                return take_away(self._folder.path, read_registry(self._folder.path))
        except FileNotFoundError:
            # Somebody removed the run's folder; what the run owns is known here, too.
            return remove_all(self._owned)
        except OSError as error:
            reaped = remove_all(self._owned)
            reaped.problems.append(f"the registry cannot be read: {error}")
            return reaped
