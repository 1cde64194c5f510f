"""The guests' door on the simulated network: its real core and lobby, and guests played here.

Guests chat and report, and besides that do everything that strangers do: they come late, go in the
middle, die without a word, are silent for too long and come back with results of long ago. Answers
of the door are lost on their way to them now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sim.standins import SEEN

from milepost.actors.agent.core import AgentCore, AwaitRoom, CollectAlive, RunCode, StopCode
from milepost.actors.effects import Answered, Ask, Effect, Event, Unanswered, Wake, Woken, WorkDone
from milepost.actors.guests.lobby import Give, GoesBack, Lobby, LobbyEffect
from milepost.messages.agent import RunEpisode
from milepost.messages.guests import GuestEpisode
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import ChatReply, ChatTurn
from milepost.messages.shared import Status

SILENCE_S = 20.0
EPISODES_MAX = 4


@dataclass(slots=True)
class Play:
    """One episode, as the guest that has it sees it."""

    order: RunEpisode
    turns: int
    reward: float
    fails: bool
    is_asking: bool = False
    generation: int = 0
    tokens_seen: int = 0


@dataclass(slots=True)
class Seat:
    """Room for one guest at a time."""

    token: str = ""
    """Of the guest that sits here; empty: nobody does."""
    credit: int = 0
    running: dict[str, Play] = field(default_factory=dict)
    ghosts: list[tuple[str, str, Play]] = field(default_factory=list)
    """Token, episode and result of guests that were given up and may still speak."""


class GuestsDoor:
    """The core of the door's process, with guests in their seats.

    Args:
        name: of the process.
        random: of this life of it.
        failures: share of episodes that fail.
        alive_every_s: as of `AgentCore`.
        tells_evaluator: it plays evaluations, too.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        *,
        failures: float,
        alive_every_s: float,
        tells_evaluator: bool,
    ) -> None:
        self.core = AgentCore(
            name,
            episodes_max=EPISODES_MAX,
            alive_every_s=alive_every_s,
            has_fixed_room=False,
            tell_room_to=("evaluator",) if tells_evaluator else (),
        )
        self.lobby = Lobby(
            guests_max=3, episodes_max=EPISODES_MAX, silence_s=SILENCE_S, heartbeat_s=SILENCE_S / 4
        )
        self.num_void = 0
        """Results that counted no more: of guests that were gone."""
        self._random = random
        self._failures = failures
        self._seats = [Seat() for _ in range(3)]
        self._works: dict[str, RunCode] = {}
        """By name of the episode: what runs on this host."""
        self._alive: set[str] = set()
        self._awaited: AwaitRoom | None = None
        self._serial = 0
        self._given: set[tuple[str, str]] = set()

    def start(self, now_s: float) -> list[Effect]:
        wakes: list[Effect] = [self._next_act(seat, now_s) for seat in range(len(self._seats))]
        return [*self._hands(self.core.start(now_s), now_s), *wakes]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Woken("lobby"):
                effects = self._follow(self.lobby.tick(now_s), now_s)
            case Woken(key) if key.startswith("seat/"):
                number = int(key.removeprefix("seat/"))
                effects = [*self._act(number, now_s), self._next_act(number, now_s)]
            case Answered(key) | Unanswered(key) if key.startswith("chat/"):
                effects = self._chatted(key, event, now_s)
            case _:
                effects = self._hands(self.core.handle(event, now_s), now_s)
        due_s = self.lobby.next_s()
        timer = [] if due_s is None else [Wake("lobby", max(due_s, now_s))]
        return [*effects, *self._tell_room(now_s), *timer]

    # ---- the hands of the door's process -------------------------------------------------

    def _hands(self, effects: list[Effect], now_s: float) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case RunCode(order=order):
                    name = _name(order)
                    self._works[name] = effect
                    out += self._follow(self.lobby.add(_given(order)), now_s)
                case StopCode(run_key=run_key, reason=reason):
                    name = run_key.removeprefix("run/")
                    out += self._over(name, Status.ABORTED, reason, now_s)
                    out += self._hands(self.core.handle(WorkDone(effect.key, None), now_s), now_s)
                case AwaitRoom():
                    self._awaited = effect
                case CollectAlive():
                    alive, self._alive = tuple(sorted(self._alive)), set()
                    done = WorkDone(effect.key, alive)
                    out += self._hands(self.core.handle(done, now_s), now_s)
                case _:
                    out.append(effect)
        return out

    def _follow(self, effects: list[LobbyEffect], now_s: float) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Give((int(number), str(token)), answer):
                    if self._random.random() < 0.9:
                        self._hear(number, token, answer.episodes, answer.cancelled)
                case GoesBack(name, reason):
                    out += self._over(name, Status.ABORTED, reason, now_s)
        return out

    def _over(
        self, name: str, status: Status, cause: str, now_s: float, play: Play | None = None
    ) -> list[Effect]:
        """The episode is over on this host; whoever still plays it is told."""
        work = self._works.pop(name, None)
        if work is None:
            return []
        ended = EpisodeEnded(
            trajectory_id=work.order.trajectory_id,
            attempt=work.order.attempt,
            status=status,
            reward=play.reward if play and status is Status.COMPLETED else None,
            cause=cause,
            metrics={"solved": play.reward, SEEN: float(play.tokens_seen)} if play else {},
            generation=play.generation if play else None,
        )
        out = self._follow(self.lobby.remove(name, cause or "done"), now_s)
        return [*out, *self._hands(self.core.handle(WorkDone(work.key, ended), now_s), now_s)]

    def _tell_room(self, now_s: float) -> list[Effect]:
        awaited = self._awaited
        if awaited is None or awaited.room == self.lobby.room:
            return []
        self._awaited = None
        done = WorkDone(awaited.key, self.lobby.room)
        return self._hands(self.core.handle(done, now_s), now_s)

    # ---- guests --------------------------------------------------------------------------

    def _next_act(self, number: int, now_s: float) -> Effect:
        # Once in a while longer than the door believes in it.
        pause_s = 1.5 * SILENCE_S if self._random.random() < 0.02 else self._random.uniform(0.2, 2)
        return Wake(f"seat/{number}", now_s + pause_s)

    def _act(self, number: int, now_s: float) -> list[Effect]:
        seat, random = self._seats[number], self._random
        effects: list[Effect] = []
        if seat.ghosts and random.random() < 0.5:
            effects += self._report(*seat.ghosts.pop(), now_s)
        if not seat.token:
            self._serial += 1
            token, credit = f"t{self._serial}", random.randint(1, 3)
            if not self.lobby.join(token, "guest", credit, now_s):
                seat.token, seat.credit = token, credit
            return effects
        guest = self.lobby.guest(seat.token, now_s)
        if guest is None or random.random() < 0.03:
            # It was taken for dead, or is.
            seat.ghosts = [(seat.token, name, play) for name, play in seat.running.items()]
            seat.token, seat.running = "", {}
            return effects
        if random.random() < 0.03:
            token, seat.token, seat.running = seat.token, "", {}
            return [*effects, *self._follow(self.lobby.leave(token, "it had to go"), now_s)]
        question = (number, seat.token)
        listed = frozenset(seat.running)
        taken = self.lobby.take(guest, seat.credit, listed, question, now_s)
        return [*effects, *self._follow(taken, now_s), *self._go_on(number, now_s)]

    def _hear(
        self,
        number: int,
        token: str,
        episodes: tuple[GuestEpisode, ...],
        cancelled: dict[str, str],
    ) -> None:
        seat = self._seats[number]
        if seat.token != token:
            return
        for given in episodes:
            name, work = given.episode_id, self._works[given.episode_id]
            if (token, name) not in self._given:
                self._given.add((token, name))
                has = len(self.lobby._guests[token].episodes)
                assert has <= seat.credit, f"LO-2 (credit): {has} of {seat.credit}"
            turns = 1 + int(self._random.random() * 2)
            fails = self._random.random() < self._failures
            reward = float(self._random.random() < 0.5)
            seat.running.setdefault(name, Play(work.order, turns, reward, fails))
        for name in cancelled:
            seat.running.pop(name, None)

    def _go_on(self, number: int, now_s: float) -> list[Effect]:
        seat, effects = self._seats[number], []
        for name, play in list(seat.running.items()):
            if not play.turns:
                del seat.running[name]
                effects += self._report(seat.token, name, play, now_s)
            elif not play.is_asking and name in self._works:
                play.is_asking = True
                order = play.order
                turn = ChatTurn(
                    trajectory_id=order.trajectory_id, messages=[], attempt=order.attempt
                )
                effects.append(Ask(order.session, turn, f"chat/{number}/{seat.token}/{name}"))
        return effects

    def _chatted(self, key: str, event: Answered | Unanswered, now_s: float) -> list[Effect]:
        _, number, token, name = key.split("/", 3)
        seat = self._seats[int(number)]
        if isinstance(event, Answered) and isinstance(event.message, ChatReply):
            self._alive.add(name.rpartition("/")[0])
        play = seat.running.get(name) if seat.token == token else None
        if play is None:
            return []
        play.is_asking = False
        if isinstance(event, Answered) and isinstance(event.message, ChatReply):
            play.turns -= 1
            play.generation = event.message.generation
            play.tokens_seen += event.message.usage.completion_tokens
            return []
        del seat.running[name]
        guest = self.lobby.guest(token, now_s)
        if guest is None or name not in guest.episodes:
            return []
        self.lobby.reported(guest, name)
        return self._over(name, Status.ABORTED, "the chat was refused", now_s)

    def _report(self, token: str, name: str, play: Play, now_s: float) -> list[Effect]:
        guest = self.lobby.guest(token, now_s)
        if guest is None or name not in guest.episodes or name not in self._works or play.turns:
            self.num_void += 1
            return []
        self.lobby.reported(guest, name)
        if play.fails:
            return self._over(name, Status.FAILED, "it went wrong", now_s)
        return self._over(name, Status.COMPLETED, "", now_s, play)

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Of both, and that they agree on what there is."""
        self.core.validate()
        self.lobby.validate()
        held = {name for guest in self.lobby._guests.values() for name in guest.episodes}
        held |= {episode.episode_id for episode in self.lobby._waiting}
        assert held <= self._works.keys(), f"no episode of this host: {held - self._works.keys()}"
        assert self._works.keys() <= held, f"LO-3 (nothing kept): {self._works.keys() - held}"

    def statistics(self) -> dict[str, object]:
        return {**self.core.statistics(), **self.lobby.statistics()}

    def working_on(self) -> str:
        return self.core.working_on()


def _name(order: RunEpisode) -> str:
    return f"{order.trajectory_id}/{order.attempt}"


def _given(order: RunEpisode) -> GuestEpisode:
    return GuestEpisode(
        episode_id=_name(order),
        trajectory_id=order.trajectory_id,
        attempt=order.attempt,
        prompt=order.prompt,
        limits=order.limits,
        purpose=order.purpose,
        seed=order.seed,
    )
