"""A newer request of a linear session: when it takes the place of an older one, and when not."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from unit.session.kit import QUESTION, Play, aborts, ids, play, refused, reply_to, row_of, text_of

from milepost.actors.effects import Answered, WorkDone
from milepost.actors.session import work
from milepost.actors.session.planning import FLIGHTS_MAX
from milepost.messages.session import ChatReply
from milepost.messages.shared import ChatMessage

NUMBERS = count()


def fresh(text: str = "And of mia?") -> ChatMessage:
    """A message that no renderer remembers."""
    return {"role": "user", "content": f"{next(NUMBERS)}: {text}"}


def too_long() -> ChatMessage:
    """It leaves no room for a reply."""
    return fresh("word " * 400)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is work for a thread."""
    monkeypatch.setattr(work, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(work, "SPARE_BYTES_MAX", 0)
    monkeypatch.setattr(work, "INLINE_TOKENS_MAX", 0)


def begun() -> Play:
    game = play(context_tokens_max=200)
    game.open()
    return game


def all_work(game: Play) -> None:
    while game.works:
        game.work()


def content(game: Play, request: Any) -> str:
    answer: Any = game.replies[request]
    assert isinstance(answer, ChatReply), answer
    return str(answer.message["content"])


def test_a_request_that_is_refused_leaves_the_turn_in_flight_alone() -> None:
    """A harness that counts badly, or replays too much, must not lose the good turn as well."""
    game = begun()
    older = game.chat([QUESTION])
    for messages, kind in ([too_long()], "limit"), ([{**QUESTION, "role": "robot"}], "bad_request"):
        request = game.chat(messages)
        all_work(game)
        refused(game, request, kind)
    assert not aborts(game)
    game.sample("cat")
    assert content(game, older) == "cat"
    game.finish()
    assert game.take().trajectory.metadata["limit"] == ""


@pytest.mark.usefixtures("threads")
def test_what_a_template_refuses_in_a_thread_stops_nothing_either() -> None:
    game = begun()
    older = game.chat([QUESTION])
    all_work(game)
    newer = game.chat([{"role": "tool", "tool_call_id": "call_0_0", "content": None}])
    all_work(game)
    refused(game, newer, "bad_request")
    game.sample("cat")
    all_work(game)
    assert content(game, older) == "cat"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_reply_waits_for_what_becomes_of_a_newer_request(*, is_refused: bool) -> None:
    """The newer one was planned on the row as it was: it goes on from there, or it is refused."""
    game = begun()
    older = game.chat([QUESTION])
    all_work(game)
    newer = game.chat([too_long() if is_refused else fresh()])
    (render,) = game.works
    game.sample("cat")
    read = next(key for key in game.works if key != render)
    done: Any = game.works.pop(read)
    game.handle(WorkDone(read, done.carry_out(game.desk.renderer)))
    assert not game.replies.keys() & {older, newer}
    assert not row_of(game.core).turns
    all_work(game)
    if is_refused:
        refused(game, newer, "limit")
        assert content(game, older) == "cat"
        return
    refused(game, older, "closed")
    game.sample("dog")
    all_work(game)
    assert content(game, newer) == "dog"
    assert len(row_of(game.core).turns) == 1


@pytest.mark.usefixtures("threads")
def test_of_several_requests_that_are_rendered_the_newest_good_one_counts() -> None:
    """The first waits for the second, the second for the third, which is refused."""
    game = begun()
    first, second = game.chat([fresh("first")]), game.chat([fresh()])
    third = game.chat([too_long()])
    game.work()
    game.work()
    assert not game.asks
    all_work(game)
    refused(game, third, "limit")
    refused(game, first, "closed")
    assert "mia" in text_of(game.open_ask()[2].token_ids)
    game.sample("dog")
    all_work(game)
    assert content(game, second) == "dog"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seed", range(30))
def test_the_row_is_what_an_engine_saw_and_sampled_for_an_answer_that_was_given(seed: int) -> None:
    """Requests good and bad, threads and engines in any order; each request is answered once."""
    generator = random.Random(seed)
    game = begun()
    requests: list[Any] = []
    answered: dict[str, tuple[list[int], list[int]]] = {}

    def step(kind: str) -> None:
        if kind in ("chat", "long"):
            requests.append(game.chat([too_long() if kind == "long" else fresh()]))
        elif kind == "work" and game.works:
            key = generator.choice(list(game.works))
            done: Any = game.works.pop(key)
            game.handle(WorkDone(key, done.carry_out(game.desk.renderer)))
        elif kind == "engine" and game.asks:
            key = generator.choice(list(game.asks))
            asked: Any = game.asks.pop(key)
            text = f"{len(answered)} cats"
            generated = reply_to(asked.message, text)
            answered[text] = ids(asked.message.token_ids), ids(generated.token_ids)
            game.handle(Answered(key, asked.to, generated))

    for _ in range(60):
        step(generator.choice(["chat", "long", "work", "work", "work", "engine", "engine"]))
    while game.works or game.asks:
        step(generator.choice(["work", "engine"]))
    assert game.replies.keys() >= set(requests)
    replies = [game.replies[request] for request in requests]
    given = [reply for reply in replies if isinstance(reply, ChatReply)]
    if given:
        prompt, sampled = answered[str(given[-1].message["content"])]
        assert row_of(game.core).token_ids.tolist() == prompt + sampled


@pytest.mark.usefixtures("threads")
def test_requests_that_wait_for_a_thread_are_bounded() -> None:
    """An agent in a loop would fill the memory of all others' sessions."""
    game = begun()
    waiting = [game.chat([fresh()]) for _ in range(FLIGHTS_MAX)]
    reason = refused(game, game.chat([fresh()]), "bad_request")
    assert reason.startswith(f"{FLIGHTS_MAX} requests of session g.0 are open")
    assert not game.replies.keys() & set(waiting)
    all_work(game)
    game.sample("cat")
    all_work(game)
    assert content(game, waiting[-1]) == "cat"
