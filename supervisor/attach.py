"""The door for clients that are no actors: `ps`, `why`, `stop` and the others.

A mailbox of its own with small limits, apart from the one the actors use: whatever clients send,
however many come and vanish, the run's own messages never wait behind theirs. A client has no
address; answers go back along its connection, and one that is gone is forgotten by the bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from milepost.configs.spec import Address
from milepost.messages.bus import Bus, BusClosed, BusLimits, Incoming
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    ActorStacksRequested,
    FreezeRequested,
    LogRead,
    LogRequested,
    PinRequested,
    RecorderRead,
    Refused,
    Snapshot,
    SnapshotRequested,
    StopAccepted,
    StopRun,
    TapRead,
    ThawRequested,
)
from milepost.supervisor.logs import log_path, read_piece
from milepost.supervisor.sockets import ATTACH

LIMITS: Final = BusLimits(
    frame_bytes_max=1 << 20,
    frames_max=8,
    window_messages=16,
    inbox_messages_max=256,
    outbox_messages_max=256,
    links_max=256,
)
ASKED_AT_ONCE_MAX: Final = 32
"""Questions of clients that wait for an actor's answer."""
LOG_BYTES_MAX: Final = 1 << 18
RUN_LOGS: Final = ("events", "metrics")
CLOSE_S: Final = 0.2
log = logging.getLogger(__name__)
Asked = TypeVar("Asked")
PassedOn: TypeAlias = TapRead | RecorderRead | PinRequested | FreezeRequested | ThawRequested
"""Questions whose answers actors give."""


class Desk(Protocol):
    """What the door needs of the supervisor."""

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        ...

    def request_stop(self, reason: str, *, at_once: bool) -> str:
        """Order the end; returns the phase of the run after it."""
        ...

    def ask_stacks(self, actor: str) -> asyncio.Future[Message]:
        """Ask an actor for its stacks; the result is `Stacks` or `Refused`."""
        ...

    def pass_on(self, wanted: PassedOn) -> asyncio.Future[Message]:
        """Ask one actor or several; the result is their answer or `Refused`."""
        ...

    def actor_names(self) -> tuple[str, ...]:
        """Every actor of the run."""
        ...


class Door:
    """Answers clients one after the other."""

    def __init__(self, bus: Bus, desk: Desk, run_folder: Path) -> None:
        self._bus = bus
        self._desk = desk
        self._run_folder = run_folder
        self._num_asked = 0
        self._open: Incoming | None = None
        """The question that is being answered."""
        self._begin()

    @classmethod
    async def open(
        cls,
        address: Address,
        run_id: str,
        desk: Desk,
        run_folder: Path,
        *,
        secret_key: str = "",
        client_keys: Collection[str] = (),
        listen_fd: int = -1,
    ) -> Door:
        """Bind the clients' mailbox; the last three are of one on tcp (see `Bus.open`).

        Raises:
            AddressError: it cannot be bound.
        """
        bus = await Bus.open(
            name=ATTACH,
            incarnation=0,
            run_id=run_id,
            addresses={ATTACH: address},
            limits=LIMITS,
            secret_key=secret_key,
            client_keys=client_keys,
            listen_fd=listen_fd,
        )
        return cls(bus, desk, run_folder)

    async def close(self) -> None:
        """Send what was answered and close."""
        await self._bus.close(deadline_s=CLOSE_S)
        await self._task

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._serve(), name="attach")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A question that cannot be answered costs its asker the answer, and nobody else."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._open is None:
            log.error("clients are answered no more", exc_info=error)
            return
        self._failed(self._open, error)
        self._begin()

    def _failed(self, asked: Incoming, error: BaseException) -> None:
        name = type(asked.message).__name__
        log.error("%s of %s could not be answered", name, asked.source, exc_info=error)
        reason = f"the supervisor failed at {name}: {type(error).__name__}: {error}"
        self._bus.reply(asked, Refused(reason=reason))

    async def _serve(self) -> None:
        while True:
            self._open = None
            try:
                incoming = await self._bus.receive()
            except BusClosed:
                return
            if not incoming.wants_reply:
                continue
            self._open = incoming
            match incoming.message:
                case ActorStacksRequested(actor=actor):
                    self._later(incoming, self._desk.ask_stacks, actor)
                case message if isinstance(message, PassedOn):
                    self._later(incoming, self._desk.pass_on, message)
                case message:
                    self._bus.reply(incoming, await self._answer(message))

    async def _answer(self, message: Message) -> Message:
        match message:
            case SnapshotRequested():
                return self._desk.snapshot()
            case StopRun(reason=reason, at_once=at_once):
                return StopAccepted(phase=self._desk.request_stop(reason, at_once=at_once))
            case LogRequested():
                return await self._log(message)
            case _:
                return Refused(reason=f"{type(message).__name__} is nothing for clients to ask")

    async def _log(self, wanted: LogRequested) -> Message:
        if wanted.log in RUN_LOGS:
            path = self._run_folder / f"{wanted.log}.jsonl"
        elif wanted.log in self._desk.actor_names():
            path = log_path(self._run_folder, wanted.log)
        else:
            known = ", ".join((*RUN_LOGS, *self._desk.actor_names()))
            return Refused(reason=f"no log {wanted.log!r}, there are: {known}")
        size = min(wanted.bytes_max, LOG_BYTES_MAX)
        try:
            data, offset = await asyncio.to_thread(read_piece, path, wanted.offset, size)
        except OSError as error:
            return Refused(reason=f"log {wanted.log} cannot be read: {error}")
        return LogRead(data=data, offset=offset)

    def _later(
        self, incoming: Incoming, ask: Callable[[Asked], asyncio.Future[Message]], asked: Asked
    ) -> None:
        # Answered later, so that an actor that hangs does not keep other clients waiting.
        if self._num_asked >= ASKED_AT_ONCE_MAX:
            text = f"{self._num_asked} questions of clients wait for actors already"
            self._bus.reply(incoming, Refused(reason=text))
            return
        self._num_asked += 1

        def reply(answered: asyncio.Future[Message]) -> None:
            self._num_asked -= 1
            if answered.cancelled():
                return
            error = answered.exception()
            if error is None:
                try:
                    self._bus.reply(incoming, answered.result())
                except (TypeError, ValueError) as cannot_travel:
                    error = cannot_travel
            if error is not None:
                self._failed(incoming, error)

        ask(asked).add_done_callback(reply)
