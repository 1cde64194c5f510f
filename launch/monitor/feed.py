"""Where a monitor hears of its run: the supervisor's snapshots, the run folder, taps on demand.

Nothing here can hold the run up. Snapshots come over a socket that drops what is not read, files
are only read, and a tap is a bounded copy that its actor forgets when nobody asks for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from milepost.launch.attach import Client, NotServed, Run, Unreachable, find_run
from milepost.launch.monitor.records import Records
from milepost.launch.monitor.updates import Attached, Copied, Heard, Silent, Update, Wanted

if TYPE_CHECKING:
    from milepost.launch.traffic.edges import Spot
    from milepost.launch.traffic.seen import Seen
    from milepost.messages.supervisor import Snapshot, Tapped

READ_S: Final = 1.0
"""Between two looks at the files."""
QUIET_S: Final = 1.5
"""Snapshots come once a second; later than this, the files are asked what is the matter."""
SILENCE_S: Final = 5.0
TAP_S: Final = 0.5
ASK_S: Final = 5.0


class Feed:
    """Tells `take` everything, on the event loop, until it is cancelled or the run is over.

    Args:
        folder: of the run.
        records: its files.
        take: the model's.
        wanted: what the page in front needs now.
        stay: go on after the end of the run, for the case that it is resumed.
    """

    def __init__(
        self,
        folder: Path,
        records: Records,
        take: Callable[[Update], None],
        wanted: Callable[[], Wanted],
        *,
        stay: bool,
    ) -> None:
        self._folder = folder
        self._records = records
        self._take = take
        self._wanted = wanted
        self._stay = stay
        self._tap = os.urandom(4).hex()
        self._run_id = ""

    async def run(self) -> str:
        """Follow the run.

        Returns:
            Why it cannot be heard any more; empty when it ended as runs do.
        """
        # First, so that the first picture has curves in it.
        await self._read_piece()
        following = asyncio.create_task(self._follow(), name="follow")
        await _first_of(following, asyncio.create_task(self._read(), name="records"))
        while await self._read_piece():
            pass  # the last lines, which were written while the run ended
        return following.result()

    # ---- files ---------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            # A long history comes in pieces; the screen is drawn between them.
            while await self._read_piece() > 1:
                pass
            if log := self._wanted().log:
                self._take(await asyncio.to_thread(self._records.log, log))
            await asyncio.sleep(READ_S)

    async def _read_piece(self) -> int:
        """Steps and events that were new; an open step is new whenever it has grown."""
        try:
            recorded = await asyncio.to_thread(self._records.read)
        except OSError as error:
            self._take(Silent(reason=f"the run folder cannot be read: {error}"))
            return 0
        if recorded is None:
            return 0
        self._take(recorded)
        return len(recorded.steps) + len(recorded.events)

    # ---- the supervisor ------------------------------------------------------------------

    async def _follow(self) -> str:
        gone_s = 0.0
        while True:
            try:
                run = await asyncio.to_thread(find, self._folder)
            except Unreachable as error:
                ended = await asyncio.to_thread(self._records.ended)
                self._take(ended or Silent(reason=str(error)))
                gone_s += READ_S
                if not self._stay and (ended or gone_s >= SILENCE_S):
                    return "" if ended else str(error)
                await asyncio.sleep(READ_S)
                continue
            gone_s = 0.0
            if self._run_id and run.run_id != self._run_id:
                self._records.rewind()
            self._run_id = run.run_id
            self._take(Attached(run_id=run.run_id))
            await self._attached(run)

    async def _attached(self, run: Run) -> None:
        """Until this life of the run is over."""
        await _first_of(
            asyncio.create_task(self._listen(run), name="listen"),
            asyncio.create_task(self._tap_on_demand(run), name="taps"),
        )

    async def _listen(self, run: Run) -> None:
        from milepost.messages.listener import Listener

        listener = Listener(run.statistics, run.run_id)
        quiet_s = 0.0
        try:
            while True:
                snapshot = await listener.newest(QUIET_S)
                if snapshot is not None:
                    quiet_s = 0.0
                    self._take(heard(snapshot))
                    continue
                quiet_s += QUIET_S
                try:
                    found = await asyncio.to_thread(find, self._folder)
                except Unreachable:
                    return
                if found.run_id != run.run_id:
                    return
                if quiet_s >= SILENCE_S:
                    text = f"the supervisor (pid {run.pid}) has said nothing for {quiet_s:.0f} s"
                    self._take(Silent(reason=text))
        finally:
            await listener.close()

    # ---- taps ----------------------------------------------------------------------------

    async def _tap_on_demand(self, run: Run) -> None:
        """Copies of messages, while a page shows trajectories and no longer.

        The connection that asks for them costs more than all snapshots: nobody has it else.
        """
        while True:
            if self._wanted().finished:
                async with Client(run) as client:
                    await self._copy(client)
            await asyncio.sleep(TAP_S)

    async def _copy(self, client: Client) -> None:
        names: tuple[str, ...] = ()
        while (wanted := self._wanted()).finished:
            names = names or await self._actor_names(client)
            spots = spots_for(wanted, names)
            answers = await asyncio.gather(*(self._ask_tap(client, spot) for spot in spots))
            pairs = zip(spots, answers, strict=True)
            told = [(spot, answer) for spot, answer in pairs if answer is not None]
            seen = [read for spot, answer in told for read in _read_copies(spot, answer)]
            dropped = sum(answer.dropped for _, answer in told)
            if seen or dropped:
                in_order = tuple(sorted(seen, key=lambda each: each.at_ns))
                self._take(Copied(seen=in_order, dropped=dropped))
            await asyncio.sleep(TAP_S)

    async def _actor_names(self, client: Client) -> tuple[str, ...]:
        from milepost.messages.supervisor import Snapshot, SnapshotRequested

        try:
            snapshot = await client.ask(SnapshotRequested(), Snapshot, ASK_S)
        except (Unreachable, NotServed):
            return ()
        return tuple(str(actor["actor"]) for actor in snapshot.actors)

    async def _ask_tap(self, client: Client, spot: Spot) -> Tapped | None:
        from milepost.messages.supervisor import Tapped, TapRead

        wanted = TapRead(
            actor=spot.actor,
            tap=self._tap,
            peers=spot.peers,
            sent=spot.sent,
            received=spot.received,
        )
        try:
            return await client.ask(wanted, Tapped, ASK_S)
        except (NotServed, Unreachable):
            return None  # it restarts, or the run ends; the snapshots tell


def find(folder: Path) -> Run:
    """How to reach the run of this folder.

    Raises:
        Unreachable: it has ended, its supervisor is gone, or the folder cannot be read any more.
    """
    try:
        return find_run(folder)
    except (OSError, ValueError, KeyError) as error:
        raise Unreachable(f"the run folder cannot be read: {error!r}") from error


def heard(snapshot: Snapshot) -> Heard:
    """It has come now."""
    return Heard(snapshot=snapshot, wall_s=time.time(), clock_s=time.monotonic())


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Until one has ended; the others are cancelled, and what it raised is raised."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def spots_for(wanted: Wanted, names: tuple[str, ...]) -> list[Spot]:
    """Where to tap: what sessions send to the buffer, or all that concerns one trajectory."""
    from milepost.launch.traffic.edges import Spot

    sessions = [name for name in names if name.startswith("session-")]
    if not wanted.trajectory:
        return [Spot(actor=name, peers="buffer", sent=True, received=False) for name in sessions]
    spots = [Spot(actor=name, peers="*", sent=True, received=True) for name in sessions]
    if "rollout" in names:
        spots.append(Spot(actor="rollout", peers="agent-*", sent=True, received=True))
    return spots


def _read_copies(spot: Spot, answer: Tapped) -> list[Seen]:
    from milepost.launch.traffic.seen import read_copy

    return [read_copy(spot.actor, copy) for copy in answer.copies]


async def look_once(folder: Path, records: Records, take: Callable[[Update], None]) -> str:
    """Everything that is known at this moment.

    Returns:
        Why a run that has not ended cannot be heard; its files are told all the same.
    """
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    while (recorded := await asyncio.to_thread(records.read)) is not None:
        take(recorded)
    try:
        run = await asyncio.to_thread(find, folder)
        take(Attached(run_id=run.run_id))
        async with Client(run) as client:
            snapshot = await client.ask(SnapshotRequested(), Snapshot, ASK_S)
    except Unreachable as error:
        ended = await asyncio.to_thread(records.ended)
        take(ended or Silent(reason=str(error)))
        return "" if ended else str(error)
    take(heard(snapshot))
    return ""
