"""Who is at the guests' door, who has which episode, and who was silent for too long.

Invariants:
    LO-1 (one guest): an episode is with one guest at most, or waits here.
    LO-2 (credit): no guest is given more episodes than it said it runs at once.
    LO-3 (nothing kept): an episode whose guest leaves or falls silent goes back, once.
    LO-4 (goodbye): once the run ends, nobody joins or is given anything, and every answer says so.

Every answer to `TakeEpisodes` is made from this state alone, so one that was lost is made again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from milepost.messages.guests import EpisodesGiven, Goodbye, GuestEpisode

NOT_YOURS = "it is over, or was given to somebody else"
REASONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Give:
    """Answer this question of a guest."""

    question: object
    answer: EpisodesGiven


@dataclass(frozen=True, slots=True)
class GoesBack:
    """This episode has no guest any more: the run issues it again."""

    episode_id: str
    reason: str


LobbyEffect: TypeAlias = Give | GoesBack


@dataclass(slots=True)
class Guest:
    """One agent from outside.

    Attributes:
        name: for people.
        episodes_max: its credit, as it said last.
        heard_s: when it said anything.
        episodes: given to it and not over.
        listed: what it said it runs, when it asked last.
        question: its open `TakeEpisodes`.
        answer_by_s: when that is answered, news or not.
        is_told: it heard the goodbye.
    """

    name: str
    episodes_max: int
    heard_s: float
    episodes: dict[str, GuestEpisode] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    question: object | None = None
    answer_by_s: float = 0.0
    is_told: bool = False

    @property
    def free(self) -> int:
        """Episodes it can take."""
        return self.episodes_max - len(self.episodes)


class Lobby:
    """See the module. Tokens name guests, and only the guest knows its own.

    Args:
        guests_max: at once.
        episodes_max: of all guests together.
        silence_s: after which a guest is gone.
        heartbeat_s: within which every `TakeEpisodes` is answered.
    """

    def __init__(
        self, *, guests_max: int, episodes_max: int, silence_s: float, heartbeat_s: float
    ) -> None:
        self._guests_max = guests_max
        self._episodes_max = episodes_max
        self._silence_s = silence_s
        self._heartbeat_s = heartbeat_s
        self._guests: dict[str, Guest] = {}
        self._waiting: deque[GuestEpisode] = deque()
        self._reasons: dict[str, str] = {}
        """Why episodes of late ended, the newest last."""
        self._goodbye: Goodbye | None = None
        self.num_joined = 0
        self.num_lost = 0
        self.num_gone_back = 0

    # ---- guests --------------------------------------------------------------------------

    def join(self, token: str, name: str, episodes_max: int, now_s: float) -> str:
        """A guest comes; returns why it cannot, or an empty string."""
        if self._goodbye is not None:
            return self._goodbye.reason
        if len(self._guests) >= self._guests_max:
            return f"{len(self._guests)} guests are here, guests_max is {self._guests_max}"
        self._guests[token] = Guest(name, episodes_max, now_s)
        self.num_joined += 1
        return ""

    def guest(self, token: str, now_s: float) -> Guest | None:
        """The guest with this token, heard now; None for a stranger."""
        guest = self._guests.get(token)
        if guest is not None:
            guest.heard_s = now_s
        return guest

    def take(
        self,
        guest: Guest,
        episodes_max: int,
        running: frozenset[str],
        question: object,
        now_s: float,
    ) -> list[LobbyEffect]:
        """A guest asks for episodes and says which it has."""
        effects = self._answer(guest) if guest.question is not None else []
        if self._goodbye is not None:
            episodes_max = 0
        guest.episodes_max, guest.listed = episodes_max, running
        guest.question, guest.answer_by_s = question, now_s + self._heartbeat_s
        effects += self._place()
        if guest.question is question and self._has_news(guest):
            effects += self._answer(guest)
        return effects

    def close(self, goodbye: Goodbye) -> list[LobbyEffect]:
        """The run ends: every guest is told, and may finish what it has.

        Said twice, the first stands: who has heard it may have left already.
        """
        if self._goodbye is not None:
            return []
        self._goodbye = goodbye
        effects: list[LobbyEffect] = []
        for guest in self._guests.values():
            guest.episodes_max = 0
            effects += self._answer(guest) if guest.question is not None else []
        return effects + self._place()

    def leave(self, token: str, reason: str) -> list[LobbyEffect]:
        """A guest goes; what it has goes back."""
        guest = self._guests.pop(token)
        effects = self._answer(guest) if guest.question is not None else []
        for episode_id in guest.episodes:
            effects += self._back(episode_id, f"guest {guest.name} left: {reason}")
        return effects + self._place()

    def tick(self, now_s: float) -> list[LobbyEffect]:
        """Send silent guests away; answer questions whose time has come."""
        effects: list[LobbyEffect] = []
        for token, guest in list(self._guests.items()):
            if now_s - guest.heard_s >= self._silence_s:
                self.num_lost += 1
                effects += self.leave(token, f"it was silent for {self._silence_s:g} s")
            elif guest.question is not None and now_s >= guest.answer_by_s:
                effects += self._answer(guest)
        return effects

    @property
    def is_empty(self) -> bool:
        """Nobody is here."""
        return not self._guests

    @property
    def is_closed(self) -> bool:
        """The run ends."""
        return self._goodbye is not None

    def next_s(self) -> float | None:
        """When `tick` has something to do."""
        dues = [guest.heard_s + self._silence_s for guest in self._guests.values()]
        dues += [g.answer_by_s for g in self._guests.values() if g.question is not None]
        return min(dues, default=None)

    @property
    def room(self) -> int:
        """Episodes that all guests together run at once."""
        credit = sum(max(g.episodes_max, len(g.episodes)) for g in self._guests.values())
        return min(credit, self._episodes_max)

    # ---- episodes ------------------------------------------------------------------------

    def add(self, episode: GuestEpisode) -> list[LobbyEffect]:
        """The run has an episode; the guest with most room gets it."""
        self._waiting.append(episode)
        return self._place()

    def reported(self, guest: Guest, episode_id: str) -> None:
        """The guest is done with this episode of its own, and knows it."""
        del guest.episodes[episode_id]
        guest.listed -= {episode_id}

    def remove(self, episode_id: str, reason: str) -> list[LobbyEffect]:
        """An episode is over; if a guest still works on it, it is told."""
        self._waiting = deque(e for e in self._waiting if e.episode_id != episode_id)
        self._reasons[episode_id] = reason
        if len(self._reasons) > REASONS_MAX:
            del self._reasons[next(iter(self._reasons))]
        effects: list[LobbyEffect] = []
        for guest in self._guests.values():
            if guest.episodes.pop(episode_id, None) and guest.question is not None:
                effects += self._answer(guest) if self._has_news(guest) else []
        return effects + self._place()

    def _back(self, episode_id: str, reason: str) -> list[LobbyEffect]:
        self.num_gone_back += 1
        return [GoesBack(episode_id, reason)]

    def _place(self) -> list[LobbyEffect]:
        """Give what waits to whoever has room; tell those who ask."""
        told: dict[int, Guest] = {}
        while self._waiting:
            guest = max(self._guests.values(), key=lambda one: one.free, default=None)
            if guest is None or guest.free <= 0:
                break
            episode = self._waiting.popleft()
            guest.episodes[episode.episode_id] = episode
            told[id(guest)] = guest
        effects: list[LobbyEffect] = []
        for guest in told.values():
            effects += self._answer(guest) if guest.question is not None else []
        if not any(guest.episodes_max for guest in self._guests.values()):
            while self._waiting:
                effects += self._back(self._waiting.popleft().episode_id, "no guest is here")
        return effects

    def _has_news(self, guest: Guest) -> bool:
        return guest.episodes.keys() != guest.listed or guest.is_told != self.is_closed

    def _answer(self, guest: Guest) -> list[LobbyEffect]:
        """Everything that the guest does not know, by what it listed."""
        guest.is_told = self.is_closed
        question, guest.question = guest.question, None
        new = (guest.episodes[name] for name in guest.episodes if name not in guest.listed)
        gone = sorted(guest.listed - guest.episodes.keys())
        cancelled = {name: self._reasons.get(name, NOT_YOURS) for name in gone}
        answer = EpisodesGiven(episodes=tuple(new), cancelled=cancelled, goodbye=self._goodbye)
        return [Give(question, answer)]

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert LO-1."""
        names = [name for guest in self._guests.values() for name in guest.episodes]
        names += [episode.episode_id for episode in self._waiting]
        assert len(names) == len(set(names)), "LO-1 (one guest)"

    def statistics(self) -> dict[str, object]:
        """Guests with what they run, and what became of earlier ones."""
        here = [f"{g.name}: {len(g.episodes)} of {g.episodes_max}" for g in self._guests.values()]
        return {
            "guests": here,
            "guests_joined": self.num_joined,
            "guests_lost": self.num_lost,
            "episodes_gone_back": self.num_gone_back,
            "episodes_without_guest": len(self._waiting),
        }
