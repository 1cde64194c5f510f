"""What an actor knows about itself and its run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.actors import collector
from milepost.actors.shell import Shell
from milepost.configs.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from milepost.actors.effects import Core, Event, Work
    from milepost.actors.recorder.recorder import Recorder
    from milepost.configs.spec import ActorSpec
    from milepost.configs.topology import Topology
    from milepost.messages.bus import Bus


@dataclass(slots=True)
class ActorContext:
    """Given to `run` of each actor.

    Attributes:
        spec: what the supervisor handed this process.
        bus: the open bus; the shell owns its `receive`.
        recorder: writes down what the core is told and decides.
    """

    spec: ActorSpec
    bus: Bus
    recorder: Recorder | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _shell: Shell | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """Process name, e.g. `engine-0`."""
        return self.spec.actor

    @property
    def index(self) -> int:
        """Number of this replica (rank, for trainers)."""
        return self.spec.index

    @property
    def topology(self) -> Topology:
        """The resolved topology."""
        return self.spec.topology

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path(self.spec.run_folder)

    def seed(self, *names: str | int) -> int:
        """A seed of this actor's own for the use called `names`."""
        return derive_seed(self.topology.run.seed, self.name, *names)

    async def serve(
        self,
        core: Core,
        *,
        facts: dict[str, object] | None = None,
        perform: Callable[[Work], Awaitable[object]] | None = None,
    ) -> None:
        """Run `core` until the supervisor stops this process.

        Args:
            core: the pure half of the actor.
            facts: sent with READY; what was found out while starting.
            perform: carries out the core's `Work` effects.

        Raises:
            ActorFailed: the core ordered `Fail`.
        """
        collector.settles()
        shell = Shell(self, core, perform)
        self._shell, self._loop = shell, asyncio.get_running_loop()
        stopper = asyncio.create_task(self._stop_shell(shell), name="stopper")
        try:
            await shell.run(facts or {})
        finally:
            stopper.cancel()

    def inject(self, event: Event) -> None:
        """Feed the core an event from any thread."""
        assert self._shell is not None, "inject before serve"
        assert self._loop is not None, "inject before serve"
        self._loop.call_soon_threadsafe(self._shell.feed, event)

    def feed(self, event: Event) -> None:
        """Feed the core an event at once, from the event loop's own thread; never inside `handle`.

        Before BEGIN nothing may be fed.
        """
        assert self._shell is not None, "feed before serve"
        self._shell.feed(event)

    async def _stop_shell(self, shell: Shell) -> None:
        await self.stopping.wait()
        shell.stop()
