"""Answers guests on a mailbox of their own, and hands them the episodes that the run gives out.

Nothing of the run's own bus can be reached from here but the session of an episode that is the
guest's: a guest asks, the door checks and asks in its place. That costs one more hop for each
turn, and buys that one process alone has to be safe against strangers, that a client needs no
address and one socket, and that rollout and sessions know nothing of guests.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.errors import EpisodeStopped, GuestCodeFailed
from milepost.actors.guests.lobby import Give, GoesBack, Guest, Lobby, LobbyEffect
from milepost.actors.guests.talk import GIVEN_UP, OVER, SUPERSEDED, Talk
from milepost.messages.bus import Bus, BusClosed, BusLimits, Incoming
from milepost.messages.guests import (
    ChatGivenUp,
    GiveUpChat,
    Goodbye,
    GuestChat,
    GuestEpisode,
    GuestRefused,
    GuestsInbox,
    JoinRun,
    LeaveRun,
    MoreOfReply,
    ReportEpisode,
    ReportTaken,
    RunJoined,
    RunLeft,
    TakeEpisodes,
)
from milepost.messages.shared import Message

LIMITS: Final = BusLimits(
    frame_bytes_max=1 << 25,
    frames_max=8,
    window_messages=64,
    inbox_messages_max=1024,
    outbox_messages_max=1024,
    links_max=1024,
)
NAME_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 2000
"""Of a guest that leaves; each of its episodes carries it on."""
CLOSE_S: Final = 0.5
FAREWELL_S: Final = 1.0
"""How long guests that have nothing to finish get to hear the goodbye and to leave."""
RUN_ENDS: Final = Goodbye(status="", reason="the run ends")


@dataclass(slots=True)
class _Visit:
    """One episode that is with a guest, or waits for one."""

    episode: Episode
    over: asyncio.Future[None]
    talks: dict[int, Talk] = field(default_factory=dict)
    """By the number of the chat."""

    def stop(self, reason: str, *numbers: int) -> None:
        """Stop the chats of these numbers; without numbers, all."""
        for number in numbers or tuple(self.talks):
            if (talk := self.talks.pop(number, None)) is not None:
                talk.stop(reason)


@dataclass(slots=True)
class Door:
    """The guests' mailbox and what lies behind it.

    Attributes:
        bus: its mailbox.
        lobby: who is here.
        heartbeat_s: see `RunJoined`.
        silence_s: likewise.
        data_options: `data.options` of the topology.
        takes_parallel: whether sessions take several chats at once.
    """

    bus: Bus
    lobby: Lobby
    heartbeat_s: float
    silence_s: float
    data_options: dict[str, Any]
    takes_parallel: bool
    _visits: dict[str, _Visit] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _is_open: bool = True
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self) -> None:
        """Answer guests until the mailbox is closed."""
        while True:
            try:
                incoming = await self.bus.receive()
            except BusClosed:
                return
            if incoming.wants_reply:
                self._asked(incoming)

    async def close(self) -> None:
        """Say goodbye, let guests leave, and close the mailbox."""
        self.say_goodbye(RUN_ENDS)
        leaving = asyncio.create_task(self._all_left(), name="guests leave")
        await asyncio.wait({leaving}, timeout=FAREWELL_S)
        leaving.cancel()
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        await self.bus.close(deadline_s=CLOSE_S)

    def say_goodbye(self, goodbye: Goodbye) -> None:
        """Nothing is given any more, and guests are told why; the first goodbye stands."""
        self._carry_out(self.lobby.close(goodbye))

    async def _all_left(self) -> None:
        while not self.lobby.is_empty:
            self._changed.clear()
            await self._changed.wait()

    async def room_other_than(self, room: int) -> int:
        """How many episodes guests run, as soon as it is another number than `room`."""
        while self.lobby.room == room:
            self._changed.clear()
            await self._changed.wait()
        return self.lobby.room

    async def host(self, episode: Episode) -> None:
        """Have a guest run this episode.

        Raises:
            EpisodeStopped: no guest is here, or the one that had it is gone: to be issued again.
            GuestCodeFailed: the guest's code failed.
        """
        name = f"{episode.trajectory_id}/{episode.attempt}"
        assert name not in self._visits, name
        visit = _Visit(episode, asyncio.get_running_loop().create_future())
        self._visits[name] = visit
        given = GuestEpisode(
            episode_id=name,
            trajectory_id=episode.trajectory_id,
            attempt=episode.attempt,
            prompt=episode.prompt,
            limits=episode.limits,
            purpose=episode.purpose,
            seed=episode.seed,
            address=episode.address,
        )
        try:
            self._carry_out(self.lobby.add(given))
            await visit.over
        finally:
            del self._visits[name]
            # First that the episode is over, then that its chat is: the latter follows from it.
            self._carry_out(self.lobby.remove(name, OVER))
            visit.stop(OVER)

    # ---- questions -----------------------------------------------------------------------

    def _asked(self, incoming: Incoming) -> None:
        message = incoming.message
        if not isinstance(message, GuestsInbox):
            told = f"{type(message).__name__} is nothing for guests to ask"
            self.bus.reply(incoming, GuestRefused(kind="bad_request", reason=told))
            return
        if isinstance(message, JoinRun):
            self.bus.reply(incoming, self._join(message))
            return
        guest = self.lobby.guest(message.token, self._now_s())
        if guest is None:
            told = "no guest has this token: join again, what you had was issued again"
            self.bus.reply(incoming, GuestRefused(kind="unknown_guest", reason=told))
            return
        match message:
            case TakeEpisodes(episodes_max=episodes_max, running=running):
                now_s = self._now_s()
                listed = frozenset(running)
                self._carry_out(self.lobby.take(guest, episodes_max, listed, incoming, now_s))
            case GuestChat():
                self._chat(guest, incoming, message)
            case MoreOfReply():
                self._more(guest, incoming, message)
            case GiveUpChat(episode_id=episode_id, number=number):
                if (visit := self._visit(guest, incoming, episode_id)) is not None:
                    visit.stop(GIVEN_UP, number)
                    self.bus.reply(incoming, ChatGivenUp())
            case ReportEpisode():
                self.bus.reply(incoming, ReportTaken(counts=self._report(guest, message)))
            case LeaveRun(token=token, reason=reason):
                num_episodes = len(guest.episodes)
                self._carry_out(self.lobby.leave(token, reason[:REASON_CHARS_MAX]))
                self.bus.reply(incoming, RunLeft(num_episodes=num_episodes))

    def _join(self, message: JoinRun) -> Message:
        token = secrets.token_hex(16)
        name = "".join(filter(str.isprintable, message.name))[:NAME_CHARS_MAX] or "guest"
        why_not = self.lobby.join(token, name, message.episodes_max, self._now_s())
        self._carry_out([])
        if why_not:
            kind = "over" if self.lobby.is_closed else "full"
            return GuestRefused(kind=kind, reason=why_not)
        return RunJoined(
            token=token,
            heartbeat_s=self.heartbeat_s,
            silence_s=self.silence_s,
            data_options=self.data_options,
        )

    def _report(self, guest: Guest, message: ReportEpisode) -> bool:
        visit = self._visits.get(message.episode_id)
        if visit is None or visit.over.done() or message.episode_id not in guest.episodes:
            return False
        if not message.is_final:
            _take_report(visit.episode, message)
            return True
        self.lobby.reported(guest, message.episode_id)
        if message.stopped:
            visit.over.set_exception(EpisodeStopped(message.stopped[:REASON_CHARS_MAX]))
            return True
        if message.error:
            visit.over.set_exception(GuestCodeFailed(f"{guest.name}: {message.error}"))
            return True
        if message.received:
            # What came here and not there was given up there.
            visit.episode.record.received.intersection_update(message.received)
        _take_report(visit.episode, message)
        visit.over.set_result(None)
        return True

    # ---- chats ---------------------------------------------------------------------------

    def _chat(self, guest: Guest, incoming: Incoming, message: GuestChat) -> None:
        visit = self._visit(guest, incoming, message.episode_id)
        if visit is None:
            return
        visit.talks = {number: talk for number, talk in visit.talks.items() if not talk.is_over}
        if self.takes_parallel:
            visit.stop(SUPERSEDED, message.number)
        else:
            # The session stops the older turn of a conversation for the newer one, too.
            visit.stop(SUPERSEDED)
        visit.talks[message.number] = Talk(self.bus, visit.episode, incoming, message)

    def _more(self, guest: Guest, incoming: Incoming, message: MoreOfReply) -> None:
        visit = self._visit(guest, incoming, message.episode_id)
        if visit is None:
            return
        talk = visit.talks.get(message.number)
        if talk is None or not talk.wants_question:
            told = f"episode {message.episode_id} has no reply of which there is more to ask for"
            self.bus.reply(incoming, GuestRefused(kind="bad_request", reason=told))
            return
        talk.ask_on(incoming)

    def _visit(self, guest: Guest, incoming: Incoming, episode_id: str) -> _Visit | None:
        """The guest's episode; None, and the guest is told so, when it has none of this name."""
        visit = self._visits.get(episode_id)
        if visit is None or visit.over.done() or episode_id not in guest.episodes:
            told = f"episode {episode_id} is over, or is not this guest's"
            self.bus.reply(incoming, GuestRefused(kind="unknown_episode", reason=told))
            return None
        return visit

    # ---- what the lobby orders -----------------------------------------------------------

    def _carry_out(self, effects: list[LobbyEffect]) -> None:
        for effect in effects:
            match effect:
                case Give(question, answer):
                    assert isinstance(question, Incoming)
                    self.bus.reply(question, answer)
                case GoesBack(episode_id, reason):
                    visit = self._visits[episode_id]
                    if not visit.over.done():
                        visit.over.set_exception(EpisodeStopped(reason))
        self._changed.set()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.lobby.next_s()
        if due_s is not None and self._is_open:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._carry_out(self.lobby.tick(self._now_s()))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _take_report(episode: Episode, message: ReportEpisode) -> None:
    """As `Episode.report`; one that cannot be used is this episode's failure, not the door's."""
    try:
        episode.report(reward=message.reward, metrics=message.metrics, info=message.info)
    except (TypeError, ValueError, RecursionError) as error:
        # MessagePack carries what JSON does not: extensions, keys that are no text, any depth.
        episode.record.bad_report = f"bad report: {error}"


class GuestHost(Agent):
    """The agent of a door: each episode is some guest's."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def run(self, episode: Episode) -> None:
        """Have a guest run it."""
        await self.door.host(episode)
