"""Processes beside the actors: the janitor, and a tracker for each service that gets the metrics.

None of them is needed for the run to go on, and none may hold it up or end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from milepost.configs.run import PrometheusConfig
from milepost.messages.supervisor import EventReported
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.cleanup.listeners import listener_record
from milepost.supervisor.cleanup.processes import RUN_VARIABLE
from milepost.supervisor.cleanup.unfinished import METRICS
from milepost.supervisor.logs import last_lines, log_path
from milepost.supervisor.places import Exit, LocalProcess
from milepost.supervisor.sockets import bound

JANITOR: Final = "janitor"
EXPORTER: Final = "prometheus"
JANITORS_MAX: Final = 4
"""Replacements end after this many; `milepost reap` remains."""
TRACKER_S: Final = 60.0
"""For the last metrics to reach a tracking service; importing its package may take half of it."""


@dataclass(slots=True)
class _Companion:
    """One process and the pipe at whose end of file it finishes."""

    process: LocalProcess
    pipe: int

    def let_go(self) -> None:
        """Close the pipe, once."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


class Companions:
    """Starts them, and ends them in the right order.

    Args:
        run_folder: of the run.
        run_id: written into the environment of trackers, so that they can be found.
        record: takes an event when one ends that should not have.
        own: writes a record into the registry of what the run owns; an OSError when it cannot.
    """

    def __init__(
        self,
        run_folder: Path,
        run_id: str,
        record: Callable[[EventReported], None],
        own: Callable[[dict[str, Any]], None],
    ) -> None:
        self._run_folder = run_folder
        self._run_id = run_id
        self._record = record
        self._own = own
        self._janitor: _Companion | None = None
        self._num_janitors = 0
        self._trackers: dict[str, _Companion] = {}
        self._closing = False

    def start_janitor(self) -> None:
        """Start the process that cleans up if this one is killed; start it again if it dies.

        It does not carry the run's mark: it must survive its own reaping.

        Raises:
            OSError: it cannot be started.
        """
        module = "milepost.supervisor.cleanup.janitor"
        companion = self._start(JANITOR, [module, str(self._run_folder)], {})
        os.set_blocking(companion.pipe, False)
        self._janitor = companion
        self._num_janitors += 1

        def ended(_done: asyncio.Future[Exit]) -> None:
            companion.let_go()
            if not self._closing:
                self._replace_janitor()

        companion.process.ended.add_done_callback(ended)

    def registry_renewed(self) -> None:
        """Have the janitor open the registry again, which was written anew."""
        if self._janitor is not None and self._janitor.pipe >= 0:
            # Not taken by a janitor that is dead, and will be told of, or that stands still with a
            # pipe full of the same news.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._janitor.pipe, b".")

    def start_tracker(self, kind: str, target: str) -> None:
        """Start the process that copies metrics to one service.

        Raises:
            OSError: it cannot be started.
        """
        module = "milepost.supervisor.recording.tracker"
        path = self._run_folder / METRICS
        # Whatever is there already is of an earlier part of the run, and was sent by that.
        begin = path.stat().st_size if path.exists() else 0
        words = [module, kind, target, str(self._run_folder), str(begin)]
        self._track(kind, self._start(kind, words, {RUN_VARIABLE: self._run_id}))

    def start_exporter(self, config: PrometheusConfig, statistics: str) -> None:
        """Start the process that Prometheus scrapes; its port is ours before it runs.

        Args:
            config: `[tracking.prometheus]`.
            statistics: where the run publishes its snapshots, now or later.

        Raises:
            OSError: it cannot be started, or the port is somebody else's.
        """
        module = "milepost.supervisor.exporter.server"
        with bound(config.host, config.port) as door:
            number = door.fileno()
            shown = f"[{config.host}]" if ":" in config.host else config.host
            place = f"http://{shown}:{door.getsockname()[1]}"
            self._own(listener_record(EXPORTER, place, number))
            words = [module, statistics, self._run_id, str(number), config.key_file]
            mark = {RUN_VARIABLE: self._run_id}
            self._track(EXPORTER, self._start(EXPORTER, words, mark, number))

    def _track(self, kind: str, companion: _Companion) -> None:
        self._trackers[kind] = companion

        def ended(done: asyncio.Future[Exit]) -> None:
            companion.let_go()
            del self._trackers[kind]
            if not self._closing or done.result() != Exit(0, ""):
                lines = last_lines(log_path(self._run_folder, kind))
                text = f"metrics do not reach {kind} any more: {lines[-1] if lines else ''}"
                self._tell("tracker_ended", text, {"log_tail": list(lines)})

        companion.process.ended.add_done_callback(ended)

    async def finish_trackers(self) -> None:
        """Let trackers hand out the rest; kill those that take too long."""
        self._closing = True
        companions = list(self._trackers.values())
        if not companions:
            return
        for companion in companions:
            companion.let_go()
        processes = [companion.process for companion in companions]
        await asyncio.wait([process.ended for process in processes], timeout=TRACKER_S)
        for process in processes:
            process.send_signal("KILL")

    async def close(self) -> None:
        """End the janitor; everything else is gone already."""
        self._closing = True
        if self._janitor is not None and not self._janitor.process.ended.done():
            self._janitor.process.send_signal("KILL")
            await self._janitor.process.ended

    def _replace_janitor(self) -> None:
        if self._num_janitors < JANITORS_MAX:
            self.start_janitor()
            self._tell("janitor_replaced", "the janitor was killed; there is a new one", {})
        else:
            text = "the janitor was killed again; `milepost reap` is what remains"
            self._tell("janitor_gone", text, {})

    def _tell(self, kind: str, text: str, values: Mapping[str, object]) -> None:
        self._record(EventReported(source=SUPERVISOR, kind=kind, text=text, values=dict(values)))

    def _start(
        self, name: str, words: list[str], environment: dict[str, str], *kept: int
    ) -> _Companion:
        read, write = os.pipe()
        try:
            with log_path(self._run_folder, name).open("ab") as log:
                popen = subprocess.Popen(
                    [sys.executable, "-P", "-m", *words],
                    stdin=read,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=kept,
                    env={**os.environ, **environment},
                )
        finally:
            os.close(read)
        return _Companion(LocalProcess(popen), write)
