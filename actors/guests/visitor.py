"""The other side of the door: a Python agent that joins a running job from its own process."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.episodes import GRACE_S, MARGIN_S, guarded
from milepost.actors.agent.errors import ServiceFailed
from milepost.actors.agent.outcome import read_ending
from milepost.actors.agent.sandbox.leases import KeptLeases
from milepost.actors.guests.door import LIMITS
from milepost.actors.guests.run import DOOR
from milepost.configs.spec import Address
from milepost.messages.agent import RunEpisode
from milepost.messages.bus import Bus, BusClosed, Unanswered
from milepost.messages.guests import (
    EpisodesGiven,
    GiveUpChat,
    Goodbye,
    GuestChat,
    GuestEpisode,
    GuestRefused,
    JoinRun,
    LeaveRun,
    MoreOfReply,
    ReplyPart,
    ReportEpisode,
    ReportTaken,
    RunJoined,
    TakeEpisodes,
)
from milepost.messages.session import ChatRefused, ChatTurn

if TYPE_CHECKING:
    from milepost.actors.agent.episode import Record
    from milepost.actors.agent.reply import Parts
    from milepost.actors.guests.invitation import Invitation
    from milepost.messages.shared import Message

JOIN_S: Final = 20.0
REPORT_S: Final = 30.0
LEAVE_S: Final = 5.0
CLIENT: Final = "milepost-python"

log = logging.getLogger(__name__)


class DoorClosed(RuntimeError):
    """The job cannot be joined, or is gone; the text says what is known."""


@dataclass(slots=True)
class _Stay:
    """One membership, from `RunJoined` on; another one begins when the door was restarted."""

    token: str
    heartbeat_s: float
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    cancelled: dict[str, str] = field(default_factory=dict)


class Visitor:
    """One agent, joined to one running job.

    Args:
        agent: the user's; its `data_options` are set when it has joined.
        invitation: of the job.
        name: for people.
        episodes_max: run at once.
    """

    def __init__(
        self, agent: Agent, invitation: Invitation, *, name: str, episodes_max: int
    ) -> None:
        self._agent = agent
        self._invitation = invitation
        self._name = name
        self._episodes_max = episodes_max
        self._bus: Bus | None = None
        self._leaving = ""
        self._changed = asyncio.Event()
        self.goodbye: Goodbye | None = None
        """What the run said of its end; None while it goes on without us."""
        self.counts: Counter[str] = Counter()
        """Episodes by what became of them: reported, failed, cancelled, void."""

    def leave(self, reason: str) -> None:
        """Take nothing new, finish what runs, then go. Asked twice, what runs is left, too."""
        if self._leaving:
            self._episodes_max = -1
        self._leaving = self._leaving or reason
        self._changed.set()

    async def run(self) -> None:
        """Join, run episodes, leave; returns when we were asked to, or the run has ended.

        Raises:
            DoorClosed: nobody answers at the door, or it refuses.
        """
        self._bus = await Bus.open(
            name=f"guest-{secrets.token_hex(6)}",
            incarnation=0,
            run_id=self._invitation.run_id,
            addresses={
                DOOR: Address(
                    endpoint=self._invitation.endpoint,
                    public_key=self._invitation.server_public_key,
                )
            },
            limits=LIMITS,
            secret_key=self._invitation.secret_key,
        )
        leases = KeptLeases()
        self._agent.leases = leases
        try:
            stay = await self._join()
            await self._agent.start()
            try:
                while not await self._stay(stay):
                    stay = await self._join()
            finally:
                await self._agent.stop()
        finally:
            await self._bus.close(deadline_s=LEAVE_S)
            await leases.close()

    async def _join(self) -> _Stay:
        message = JoinRun(name=self._name, episodes_max=self._episodes_max, client=CLIENT)
        try:
            answer = await self.ask(message, JOIN_S)
        except ServiceFailed as error:
            raise DoorClosed(f"{self._invitation.endpoint} does not answer: {error}") from error
        if not isinstance(answer, RunJoined):
            raise DoorClosed(f"the run refuses this guest: {_said(answer)}")
        self._agent.data_options = answer.data_options
        log.info("joined run %s as %s", self._invitation.run_id, self._name)
        return _Stay(answer.token, answer.heartbeat_s)

    # ---- one membership ------------------------------------------------------------------

    async def _stay(self, stay: _Stay) -> bool:
        """Run episodes until we leave (True), or the door knows us no more (False)."""
        try:
            while not (self._leaving and (not stay.tasks or self._episodes_max < 0)):
                answer = await self._next(stay)
                if isinstance(answer, EpisodesGiven):
                    self._begin(stay, answer)
                    self._hear(answer.goodbye)
                elif answer is not None:
                    log.warning("the door has forgotten this guest: %s", _said(answer))
                    return False
            await self.ask(LeaveRun(token=stay.token, reason=self._leaving), LEAVE_S)
        except ServiceFailed as error:
            log.warning("the door does not answer: %s", error)
            return bool(self._leaving)
        finally:
            await self._end_all(stay)
        return True

    async def _next(self, stay: _Stay) -> Message | None:
        """The next news of the door; None when something changed here first."""
        credit = 0 if self._leaving else self._episodes_max
        question = TakeEpisodes(token=stay.token, episodes_max=credit, running=tuple(stay.tasks))
        self._changed.clear()
        asked = asyncio.create_task(self.ask(question, 2 * stay.heartbeat_s + MARGIN_S))
        changed = asyncio.create_task(self._changed.wait())
        await asyncio.wait({asked, changed}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        if asked.done():
            return asked.result()
        asked.add_done_callback(_consume)
        return None

    def _begin(self, stay: _Stay, news: EpisodesGiven) -> None:
        for given in news.episodes:
            if given.episode_id not in stay.tasks:
                name = f"episode {given.episode_id}"
                task = asyncio.create_task(self._run_one(stay, given), name=name)
                stay.tasks[given.episode_id] = task
        for episode_id, reason in news.cancelled.items():
            if (running := stay.tasks.get(episode_id)) is not None:
                log.info("%s is cancelled: %s", episode_id, reason)
                stay.cancelled[episode_id] = reason
                running.cancel()

    def _hear(self, goodbye: Goodbye | None) -> None:
        if goodbye is not None and self.goodbye is None:
            log.info("the run ends: %s", goodbye.reason)
            self.goodbye = goodbye
            self._leaving = self._leaving or "the run ends"

    async def _end_all(self, stay: _Stay) -> None:
        tasks = list(stay.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)

    # ---- one episode ---------------------------------------------------------------------

    async def _run_one(self, stay: _Stay, given: GuestEpisode) -> None:
        try:
            line = _GuestLine(self, stay.token, given)
            episode = Episode(_order(given), line)
            code = asyncio.create_task(guarded(self._agent, episode), name=given.episode_id)
            try:
                await asyncio.wait({code})
            finally:
                if not code.done():
                    code.cancel()
                    await asyncio.wait({code}, timeout=GRACE_S)
            await self._report(stay, given, episode, code)
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise
        finally:
            del stay.tasks[given.episode_id]
            if self._leaving:
                self._changed.set()

    async def _report(
        self, stay: _Stay, given: GuestEpisode, episode: Episode, code: asyncio.Task[None]
    ) -> None:
        record = episode.record
        if code.cancelled():
            error, stopped = "CancelledError: the agent cancelled itself", ""
        else:
            raised = code.exception()
            if raised is not None:
                log.warning("%s raised", given.episode_id, exc_info=raised)
            ending = read_ending(raised)
            error, stopped = ending.error or record.bad_report, ending.stopped
        # Also that a chat called it stopped: the door would give it again, if it did not say so.
        report = ReportEpisode(
            token=stay.token,
            episode_id=given.episode_id,
            reward=record.reward,
            metrics=record.metrics,
            info=record.info,
            error=error,
            stopped=stopped,
            received=tuple(sorted(record.received)),
        )
        try:
            answer = await self.ask(report, REPORT_S)
        except ServiceFailed as fault:
            log.warning("%s could not be reported: %s", given.episode_id, fault)
            answer = ReportTaken(counts=False)
        counts = isinstance(answer, ReportTaken) and answer.counts
        how = "void" if not counts else "failed" if error else "reported"
        self.counts["cancelled" if stopped else how] += 1

    def tell(self, message: Message, deadline_s: float) -> None:
        """Ask, and go on: whatever the door answers changes nothing here."""
        assert self._bus is not None, "tell before run"
        self._bus.ask(DOOR, message, deadline_s=deadline_s).add_done_callback(_consume)

    async def ask(self, message: Message, deadline_s: float) -> Message:
        """The door's answer.

        Raises:
            ServiceFailed: there is none within the deadline.
        """
        assert self._bus is not None, "ask before run"
        asked = self._bus.ask(DOOR, message, deadline_s=deadline_s)
        asked.add_done_callback(_consume)
        try:
            return (await asyncio.shield(asked)).message
        except Unanswered as error:
            raise ServiceFailed(str(error)) from error


class _GuestLine:
    """An episode's line to its session, through the door."""

    def __init__(self, visitor: Visitor, token: str, given: GuestEpisode) -> None:
        self._visitor = visitor
        self._token = token
        self._given = given
        self._numbers = count(1)

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        """The session's answer."""
        number = next(self._numbers)
        try:
            return await self._chat(turn, parts, number)
        except asyncio.CancelledError:
            gone = GiveUpChat(token=self._token, episode_id=self._given.episode_id, number=number)
            with suppress(BusClosed):
                self._visitor.tell(gone, REPORT_S)
            raise

    async def _chat(self, turn: ChatTurn, parts: Parts | None, number: int) -> Message:
        ends_s = asyncio.get_running_loop().time() + self._given.limits.seconds_max + MARGIN_S
        message = GuestChat(
            token=self._token,
            episode_id=self._given.episode_id,
            messages=turn.messages,
            tools=turn.tools,
            tokens_max=turn.tokens_max,
            stream=parts is not None,
            number=number,
        )
        answer = await self._ask(message, ends_s)
        while isinstance(answer, ReplyPart):
            assert parts is not None, "a part of a reply that was not asked for in parts"
            parts.put(answer.content, answer.reasoning, answer.tool_calls)
            more = MoreOfReply(token=self._token, episode_id=self._given.episode_id, number=number)
            answer = await self._ask(more, ends_s)
        if isinstance(answer, GuestRefused):
            return ChatRefused(kind="closed", reason=answer.reason)
        return answer

    def reported(self, record: Record) -> None:
        """The door keeps it, for when the time of the episode is up before the code is done."""
        so_far = ReportEpisode(
            token=self._token,
            episode_id=self._given.episode_id,
            reward=record.reward,
            metrics=record.metrics,
            info=record.info,
            is_final=False,
        )
        self._visitor.tell(so_far, REPORT_S)

    async def _ask(self, message: Message, ends_s: float) -> Message:
        left_s = ends_s - asyncio.get_running_loop().time()
        return await self._visitor.ask(message, max(MARGIN_S, left_s))


def _order(given: GuestEpisode) -> RunEpisode:
    """The episode as agents know it; who owns its session is the door's business."""
    return RunEpisode(
        trajectory_id=given.trajectory_id,
        group_id="",
        attempt=given.attempt,
        prompt=given.prompt,
        limits=given.limits,
        purpose=given.purpose,
        seed=given.seed,
        session=DOOR,
        report_to=DOOR,
        address=given.address,
    )


def _said(answer: Message) -> str:
    return answer.reason if isinstance(answer, GuestRefused) else type(answer).__name__


def _consume(asked: asyncio.Future[Any]) -> None:
    # Nobody may be waiting any more, and an answer that never came is then no news.
    if not asked.cancelled():
        asked.exception()
