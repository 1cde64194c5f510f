"""The guests' lobby: who has which episode, told again when an answer was lost, given back once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from unit.agent.kit import QUESTION

from milepost.actors.guests.lobby import Give, GoesBack, Lobby, LobbyEffect
from milepost.messages.guests import EpisodesGiven, Goodbye, GuestEpisode
from milepost.messages.shared import EpisodeLimits, Prompt, Purpose


def lobby(**fields: Any) -> Lobby:
    defaults = {"guests_max": 4, "episodes_max": 8, "silence_s": 20.0, "heartbeat_s": 5.0}
    return Lobby(**{**defaults, **fields})


def episode(name: str) -> GuestEpisode:
    return GuestEpisode(
        episode_id=name,
        trajectory_id=name,
        attempt=0,
        prompt=Prompt(prompt_id="p", messages=[QUESTION]),
        limits=EpisodeLimits(),
        purpose=Purpose.TRAIN,
        seed=1,
    )


def take(door: Lobby, token: str, credit: int, *running: str, now_s: float = 0.0) -> Any:
    """A guest's `TakeEpisodes`; its question is named after it and the time."""
    guest = door.guest(token, now_s)
    assert guest is not None
    return door.take(guest, credit, frozenset(running), f"{token}@{now_s}", now_s)


def given(effects: list[LobbyEffect]) -> list[tuple[object, list[str], dict[str, str]]]:
    found = []
    for effect in effects:
        if isinstance(effect, Give):
            names = [each.episode_id for each in effect.answer.episodes]
            found.append((effect.question, names, effect.answer.cancelled))
    return found


def test_an_episode_goes_to_the_guest_with_most_room_as_soon_as_it_asks() -> None:
    door = lobby()
    assert door.join("a", "anna", 1, 0.0) == ""
    assert door.join("b", "bert", 3, 0.0) == ""
    assert door.room == 4
    assert take(door, "b", 3) == []
    assert given(door.add(episode("x"))) == [("b@0.0", ["x"], {})]
    door.validate()


def test_an_answer_that_was_lost_is_made_again() -> None:
    """The guest asks again without the episode in its list, so it never got it."""
    door = lobby()
    door.join("a", "anna", 2, 0.0)
    take(door, "a", 2)
    assert given(door.add(episode("x"))) == [("a@0.0", ["x"], {})]
    assert given(take(door, "a", 2, now_s=1.0)) == [("a@1.0", ["x"], {})]
    assert take(door, "a", 2, "x", now_s=2.0) == []


def test_what_is_over_is_cancelled_with_its_reason_and_what_was_reported_is_not() -> None:
    door = lobby()
    door.join("a", "anna", 2, 0.0)
    door.add(episode("x"))
    door.add(episode("y"))
    assert take(door, "a", 2, "x", "y") == []
    guest = door.guest("a", 0.0)
    assert guest is not None
    door.reported(guest, "y")
    assert given(door.remove("y", "done")) == []
    assert given(door.remove("x", "group dropped")) == [("a@0.0", [], {"x": "group dropped"})]
    [(_, _, cancelled)] = given(take(door, "a", 2, "z", now_s=1.0))
    assert cancelled == {"z": "it is over, or was given to somebody else"}


def test_every_question_is_answered_within_a_heartbeat() -> None:
    door = lobby()
    door.join("a", "anna", 1, 0.0)
    take(door, "a", 1)
    assert door.next_s() == 5.0
    assert door.tick(4.9) == []
    assert door.tick(5.0) == [Give("a@0.0", EpisodesGiven())]
    assert door.next_s() == 20.0


def test_a_silent_guest_is_gone_and_each_of_its_episodes_goes_back_once() -> None:
    door = lobby()
    door.join("a", "anna", 2, 0.0)
    door.add(episode("x"))
    door.add(episode("y"))
    effects = door.tick(20.0)
    reason = "guest anna left: it was silent for 20 s"
    assert effects == [GoesBack("x", reason), GoesBack("y", reason)]
    assert door.room == 0
    assert door.guest("a", 21.0) is None
    assert door.add(episode("z")) == [GoesBack("z", "no guest is here")]


def test_a_guest_that_means_to_leave_keeps_what_it_has_and_gets_nothing() -> None:
    door = lobby()
    door.join("a", "anna", 2, 0.0)
    door.add(episode("x"))
    take(door, "a", 0, "x")
    assert door.room == 1
    assert door.add(episode("y")) == [GoesBack("y", "no guest is here")]
    assert given(take(door, "a", 0, "x", now_s=1.0)) == [("a@0.0", [], {})]


def test_more_guests_than_allowed_are_refused_with_the_number() -> None:
    door = lobby(guests_max=1)
    door.join("a", "anna", 1, 0.0)
    assert door.join("b", "bert", 1, 0.0) == "1 guests are here, guests_max is 1"


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_an_episode_has_one_place_and_ends_once(seed: int) -> None:
    """Guests come, ask, die and leave in any order; nothing is lost, nothing is done twice."""
    random = Random(seed)
    door = lobby(episodes_max=100)
    open_episodes: set[str] = set()
    ended: list[str] = []
    now_s = 0.0
    tokens: list[str] = []

    def follow(effects: list[LobbyEffect]) -> None:
        for effect in effects:
            if isinstance(effect, GoesBack):
                ended.append(effect.episode_id)
                open_episodes.discard(effect.episode_id)
                follow(door.remove(effect.episode_id, effect.reason))

    for serial in range(300):
        now_s += random.random() * 3
        tokens = [token for token in tokens if token in door._guests]
        match random.randrange(6):
            case 0:
                if not door.join(f"t{serial}", "g", random.randrange(4), now_s):
                    tokens.append(f"t{serial}")
            case 1 | 2 if tokens:
                token = random.choice(tokens)
                has = [name for name in door._guests[token].episodes if random.random() < 0.8]
                follow(take(door, token, random.randrange(4), *has, now_s=now_s))
            case 3:
                open_episodes.add(f"e{serial}")
                follow(door.add(episode(f"e{serial}")))
            case 4 if open_episodes:
                name = random.choice(sorted(open_episodes))
                open_episodes.discard(name)
                ended.append(name)
                follow(door.remove(name, "over"))
            case 5 if tokens and random.random() < 0.3:
                follow(door.leave(random.choice(tokens), "bye"))
            case _:
                follow(door.tick(now_s))
        door.validate()
    assert len(ended) == len(set(ended))
    held = {name for guest in door._guests.values() for name in guest.episodes}
    assert held | {each.episode_id for each in door._waiting} == open_episodes


def test_the_goodbye_reaches_everybody_once_and_nothing_is_given_after_it() -> None:
    """Who has nothing to finish hears it at once, who asks later with the next question."""
    door = lobby()
    for token in ("a", "b", "c"):
        door.join(token, token, 2, 0.0)
    take(door, "a", 2)
    take(door, "b", 2)
    door.add(episode("x"))
    [holder] = [token for token in "abc" if "x" in door._guests[token].episodes]
    goodbye = Goodbye(status="done", reason="all steps are trained")
    told = [effect for effect in door.close(goodbye) if isinstance(effect, Give)]
    assert {effect.answer.goodbye for effect in told} == {goodbye}
    assert door.close(Goodbye(status="failed", reason="late")) == [], "the first one stands"
    assert door.join("d", "dora", 2, 1.0) == "all steps are trained"
    assert door.add(episode("y")) == [GoesBack("y", "no guest is here")]
    [answer] = take(door, "c", 2, now_s=1.0)
    assert answer.answer.goodbye == goodbye
    [answer] = take(door, holder, 2, "x", now_s=1.0)
    assert answer.answer.goodbye == goodbye
    assert take(door, holder, 2, "x", now_s=2.0) == [], "told already, and not done yet"
    guest = door.guest(holder, 2.0)
    assert guest is not None
    door.reported(guest, "x")
    door.remove("x", "over")
    for token in ("a", "b", "c"):
        door.leave(token, "bye")
    assert door.is_empty
