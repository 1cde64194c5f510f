"""The agent actor: one host for many episodes of the user's code.

Owns: which episodes run here, and which wait for room.
Receives: RunEpisode, CancelEpisode, ChatPart, PeerRestarted, Drain; the guests' door RunEnds, too.
Sends: AgentReady, EpisodesAlive and AgentLeft to the rollout actor; EpisodeEnded to whoever
    ordered it; AgentReady also to an evaluator that has no other hosts.
Invariants:
    AG-1 (one ending): every episode taken ends with exactly one EpisodeEnded.
    AG-2 (room): at most episodes_max episodes run, and at most as many wait.
    AG-3 (one attempt): of one trajectory, only the newest attempt runs.
Starts: when the agent's class is made and its reward workers are up; it then offers its room.
Dies: with its episodes; their leases end, and they are issued again.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import assert_never

from milepost.actors.effects import (
    Answered,
    Effect,
    Event,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.messages.agent import CancelEpisode, ChatPart, RunEnds, RunEpisode
from milepost.messages.rollout import AgentLeft, AgentReady, EpisodeEnded, EpisodesAlive
from milepost.messages.shared import Status
from milepost.messages.supervisor import Drain, Drained, PeerRestarted

ROLLOUT = "rollout"
ALIVE_KEY = "alive"
ROOM_KEY = "room"
DRAIN_KEY = "drain"
DRAIN_SHARE = 0.8
"""Of the time a drain has, what episodes get to end by themselves."""
TELLS_MAX = 3
AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class RunCode(Work):
    """Run the user's code for one episode; the result is its `EpisodeEnded`."""

    order: RunEpisode


@dataclass(frozen=True, slots=True)
class StopCode(Work):
    """Cancel the user's code of the work `run_key`."""

    run_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class TakePart(Work):
    """More of a reply that some episode's code wants while it is sampled."""

    part: ChatPart


@dataclass(frozen=True, slots=True)
class SayGoodbye(Work):
    """The run ends like this; whoever runs episodes elsewhere is to know."""

    news: RunEnds


@dataclass(frozen=True, slots=True)
class CollectAlive(Work):
    """The result is a tuple of the trajectory ids that had a reply since the last time."""


@dataclass(frozen=True, slots=True)
class AwaitRoom(Work):
    """The result is how many episodes can run, once that is another number than `room`."""

    room: int


@dataclass(slots=True)
class _Running:
    order: RunEpisode
    since_s: float
    stopping: bool = False


@dataclass(slots=True)
class _Telling:
    to: str
    ended: EpisodeEnded
    tells: int = 1


class AgentCore:
    """See the module.

    Args:
        name: of this host.
        episodes_max: run at once.
        alive_every_s: how often the rollout actor hears which episodes go on; None: there is none.
        tell_room_to: who else hears how much room there is.
        has_fixed_room: False: there is room for nothing until an `AwaitRoom` says so.
    """

    def __init__(
        self,
        name: str,
        *,
        episodes_max: int,
        alive_every_s: float | None,
        has_fixed_room: bool = True,
        tell_room_to: tuple[str, ...] = (),
    ) -> None:
        self._name = name
        self._episodes_max = episodes_max
        self._has_fixed_room = has_fixed_room
        self._room = episodes_max if has_fixed_room else 0
        self._alive_every_s = alive_every_s
        rollout = () if alive_every_s is None else (ROLLOUT,)
        self._tell_room_to = (*rollout, *tell_room_to)
        self._running: dict[str, _Running] = {}
        self._waiting: deque[RunEpisode] = deque()
        self._telling: dict[str, _Telling] = {}
        self._ended: Counter[str] = Counter()
        self._turns = 0
        self._serial = 0
        self._is_draining = False
        self._drain_request: Request | None = None

    def start(self, now_s: float) -> list[Effect]:
        """Offer room."""
        effects = [*self._announce(), *self._next_alive(now_s)]
        return effects if self._has_fixed_room else [*effects, AwaitRoom(ROOM_KEY, self._room)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        match event:
            case Received():
                effects = self._received(event, now_s)
            case WorkDone(key, result, error):
                effects = self._done(key, result, error, now_s)
            case Woken(key):
                effects = self._woken(key, now_s)
            case Taken(key):
                del self._telling[key]
                effects = []
            case Unanswered(key):
                effects = self._not_taken(key, now_s)
            case Answered():
                raise TypeError(f"{self._name} asked nobody, yet {event.source} answered")
            case _ as unreachable:
                assert_never(unreachable)
        return [*effects, *self._drained()]

    def _received(self, event: Received, now_s: float) -> list[Effect]:
        match event.message:
            case RunEpisode():
                return self._run(event.message, now_s)
            case CancelEpisode(trajectory_id=trajectory_id, reason=reason):
                return self._cancel(trajectory_id, reason)
            case ChatPart():
                return [TakePart(self._serial_key("part"), event.message)]
            case RunEnds() if not self._has_fixed_room:
                return [SayGoodbye(self._serial_key("goodbye"), event.message)]
            case PeerRestarted(actor=actor):
                return self._peer_restarted(actor)
            case Drain(deadline_s=deadline_s):
                self._is_draining, self._drain_request = True, event.request
                return [*self._announce(), Wake(DRAIN_KEY, now_s + DRAIN_SHARE * deadline_s)]
            case message:
                told = type(message).__name__
                raise TypeError(f"{self._name} was told {told} by {event.source}")

    # ---- episodes ------------------------------------------------------------------------

    def _run(self, order: RunEpisode, now_s: float) -> list[Effect]:
        key = _key(order)
        if key in self._running or order in self._waiting:
            return []
        told = f"attempt {order.attempt} took its place"
        effects = self._cancel(order.trajectory_id, told)
        if self._is_draining:
            return [*effects, self._aborted(order, f"{self._name} drains")]
        if len(self._running) < self._room:
            self._running[key] = _Running(order, now_s)
            return [*effects, RunCode(key, order)]
        if self._room and len(self._waiting) < self._episodes_max:
            self._waiting.append(order)
            return effects
        told = f"{self._name} runs {len(self._running)} episodes and {len(self._waiting)} wait"
        return [*effects, self._aborted(order, told)]

    def _cancel(self, trajectory_id: str, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        for order in [o for o in self._waiting if o.trajectory_id == trajectory_id]:
            self._waiting.remove(order)
            effects.append(self._aborted(order, reason))
        for key, running in self._running.items():
            if running.order.trajectory_id == trajectory_id:
                effects += self._stop(key, running, reason)
        return effects

    def _stop(self, key: str, running: _Running, reason: str) -> list[Effect]:
        if running.stopping:
            return []
        running.stopping = True
        return [StopCode(self._serial_key("stop"), key, reason)]

    def _serial_key(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}/{self._serial}"

    def _stop_all(self, report_to: str | None, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        orders = (*self._waiting, *(running.order for running in self._running.values()))
        for order in orders:
            if report_to in (None, order.report_to):
                effects += self._cancel(order.trajectory_id, reason)
        return effects

    def _done(self, key: str, result: object, error: str, now_s: float) -> list[Effect]:
        if key == ALIVE_KEY:
            assert isinstance(result, tuple), error
            alive = EpisodesAlive(trajectory_ids=result)
            return [Tell(ROLLOUT, alive)] if result else []
        if key.startswith(("stop/", "part/", "goodbye/")):
            return []
        if key == ROOM_KEY:
            assert isinstance(result, int), error
            return self._resized(result, now_s)
        running = self._running.pop(key)
        order = running.order
        if isinstance(result, EpisodeEnded):
            ended = result
        else:
            ended = _unfinished(order, Status.FAILED, error, now_s - running.since_s)
        return [self._tell(order, ended), *self._start_waiting(now_s)]

    def _start_waiting(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._running) < self._room:
            following = self._waiting.popleft()
            self._running[_key(following)] = _Running(following, now_s)
            effects.append(RunCode(_key(following), following))
        return effects

    def _resized(self, room: int, now_s: float) -> list[Effect]:
        """There is room for another number of episodes; what waits for none at all is given back.

        What runs already goes on: whoever took the room away ends it, if it must.
        """
        self._room = min(room, self._episodes_max)
        effects: list[Effect] = []
        while self._waiting and not self._room:
            effects.append(self._aborted(self._waiting.popleft(), f"{self._name} has no room left"))
        effects += self._start_waiting(now_s)
        return [*effects, *self._announce(), AwaitRoom(ROOM_KEY, room)]

    # ---- telling -------------------------------------------------------------------------

    def _aborted(self, order: RunEpisode, cause: str) -> Effect:
        return self._tell(order, _unfinished(order, Status.ABORTED, cause, 0.0))

    def _tell(self, order: RunEpisode, ended: EpisodeEnded) -> Effect:
        self._ended[ended.status.value] += 1
        self._turns += ended.num_turns
        key = self._serial_key("ended")
        self._telling[key] = _Telling(order.report_to, ended)
        return Tell(order.report_to, ended, key, confirm=True)

    def _not_taken(self, key: str, now_s: float) -> list[Effect]:
        telling = self._telling.get(key)
        if telling is None:
            return []
        if telling.tells >= TELLS_MAX:
            # Whoever ordered it is gone for good; its successor knows nothing of this episode.
            del self._telling[key]
            return []
        return [Wake(key, now_s + AGAIN_S * telling.tells)]

    def _announce(self) -> list[Effect]:
        room = 0 if self._is_draining else self._room
        ready = AgentReady(agent=self._name, episodes_max=room)
        return [Tell(to, ready) for to in self._tell_room_to]

    def _next_alive(self, now_s: float) -> list[Effect]:
        return [] if self._alive_every_s is None else [Wake(ALIVE_KEY, now_s + self._alive_every_s)]

    # ---- the rest ------------------------------------------------------------------------

    def _woken(self, key: str, now_s: float) -> list[Effect]:
        if key == ALIVE_KEY:
            return [CollectAlive(ALIVE_KEY), *self._next_alive(now_s)]
        if key == DRAIN_KEY:
            return self._stop_all(None, f"{self._name} drains")
        telling = self._telling[key]
        telling.tells += 1
        return [Tell(telling.to, telling.ended, key, confirm=True)]

    def _peer_restarted(self, actor: str) -> list[Effect]:
        """Whoever ordered episodes before it died does not wait for them any more."""
        effects = self._stop_all(actor, f"{actor} restarted")
        return [*effects, *self._announce()] if actor in self._tell_room_to else effects

    def _drained(self) -> list[Effect]:
        if self._drain_request is None or self._running or self._waiting or self._telling:
            return []
        request, self._drain_request = self._drain_request, None
        effects: list[Effect] = []
        if self._alive_every_s is not None:
            # Nothing of it runs here any more; what the rollout actor still believes to, is lost.
            effects.append(Tell(ROLLOUT, AgentLeft(agent=self._name, reason="it drained")))
        return [*effects, Reply(request, Drained(actor=self._name))]

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert AG-2 and AG-3."""
        assert len(self._running) <= self._episodes_max, "AG-2 (room)"
        assert len(self._waiting) <= self._episodes_max, "AG-2 (room)"
        going = Counter(
            running.order.trajectory_id
            for running in self._running.values()
            if not running.stopping
        )
        going.update(order.trajectory_id for order in self._waiting)
        assert all(count == 1 for count in going.values()), f"AG-3 (one attempt): {going}"

    def statistics(self) -> dict[str, object]:
        """Episodes by what became of them."""
        return {
            "episodes_running": len(self._running),
            "episodes_waiting": len(self._waiting),
            "episodes_max": self._room,
            "endings_under_way": len(self._telling),
            "turns": self._turns,
            **{f"episodes_{status}": count for status, count in sorted(self._ended.items())},
        }

    def working_on(self) -> str:
        """The oldest episode, by name."""
        if not self._running:
            return "waits for episodes"
        key, oldest = min(self._running.items(), key=lambda item: item[1].since_s)
        return (
            f"runs {len(self._running)} episodes, {len(self._waiting)} wait; oldest is "
            f"{key.removeprefix('run/')}, since {oldest.since_s:.1f}"
        )


def _key(order: RunEpisode) -> str:
    return f"run/{order.trajectory_id}/{order.attempt}"


def _unfinished(order: RunEpisode, status: Status, cause: str, seconds: float) -> EpisodeEnded:
    return EpisodeEnded(
        trajectory_id=order.trajectory_id,
        attempt=order.attempt,
        status=status,
        cause=cause,
        seconds=seconds,
    )
