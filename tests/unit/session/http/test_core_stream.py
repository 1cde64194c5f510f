"""Streams in the core: parts go to the client as they come, and commit nothing."""

from __future__ import annotations

from typing import Any

from unit.session.kit import (
    CALL_TEXT,
    LOOKUP,
    QUESTION,
    STOP,
    Play,
    aborts,
    play,
    renderer,
    reply_to,
    spec,
)

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Answered, Received, Request, Unanswered
from milepost.actors.session.addresses import Addresses
from milepost.actors.session.doors import DOOR, DoorTurn, StreamReply
from milepost.messages.engine import AbortRequests
from milepost.messages.session import (
    ChatRefused,
    ChatReply,
    ClientGone,
    GeneratedPart,
    OpenSessions,
)
from milepost.messages.shared import FinishReason

TEXT = f"Let me look.\n{CALL_TEXT}"


class Door:
    """A client of the door beside the kit's hand."""

    def __init__(self, **fields: Any) -> None:
        self.game: Play = play(**fields)
        self.game.open()
        self.content = ""
        self.num_calls = 0
        self._serial = 0

    def handle(self, event: Any) -> None:
        effects = self.game.core.handle(event, self.game.now_s)
        self.game.core.validate()
        for effect in effects:
            if isinstance(effect, StreamReply):
                self.content += "".join(delta.content for delta in effect.deltas)
                self.num_calls += sum(len(delta.tool_calls) for delta in effect.deltas)
        self.game.feed([each for each in effects if not isinstance(each, StreamReply)])

    def ask(self) -> Request:
        self._serial += 1
        request = Request(DOOR, self._serial)
        turn = DoorTurn(
            trajectory_id="g.0",
            messages=[QUESTION],
            tools=[LOOKUP],
            stream="http",
            number=self._serial,
        )
        self.handle(Received(DOOR, turn, request))
        return request

    def part(self, start: int, end: int, text: str = TEXT) -> None:
        request = self.game.open_ask()[2]
        assert request.stream
        token_ids = renderer().tokenizer.encode(text + STOP)[start:end]
        part = GeneratedPart(
            request_id=request.request_id, start=start, token_ids=to_bulk(token_ids)
        )
        self.handle(Received("engine-0", part))

    def sample(self, text: str = TEXT) -> None:
        key, ask, request = self.game.open_ask()
        del self.game.asks[key]
        self.handle(Answered(key, ask.to, reply_to(request, text)))


def test_parts_reach_the_client_before_the_answer_and_make_the_same_message() -> None:
    """What the client has read when the answer comes is a beginning of it, and the rest follows."""
    door = Door()
    request = door.ask()
    door.part(0, 4)
    assert door.content
    assert TEXT.startswith(door.content)
    assert request not in door.game.replies
    door.part(4, 9)
    door.sample()
    answer = door.game.replies[request]
    assert isinstance(answer, ChatReply)
    assert door.content == answer.message["content"]
    assert door.num_calls == len(answer.message["tool_calls"]) == 1


def test_a_turn_that_moves_goes_on_streaming_when_the_beginning_is_the_same() -> None:
    """The same seed at the same place says the same: the client need not know of it."""
    door = Door(engines=("engine-0", "engine-1"))
    request = door.ask()
    door.part(0, 5)
    key, ask, _ = door.game.open_ask()
    del door.game.asks[key]
    door.handle(Unanswered(key, ask.to, "dead"))
    door.part(0, 3)
    door.sample()
    answer = door.game.replies[request]
    assert isinstance(answer, ChatReply)
    assert door.content == answer.message["content"]


def test_a_turn_that_moves_and_says_otherwise_is_refused_and_commits_nothing() -> None:
    """The client holds words of a reply that does not exist: it must hear so."""
    door = Door(engines=("engine-0", "engine-1"))
    request = door.ask()
    door.part(0, 5)
    key, ask, _ = door.game.open_ask()
    del door.game.asks[key]
    door.handle(Unanswered(key, ask.to, "dead"))
    door.sample("cat")
    answer = door.game.replies[request]
    assert isinstance(answer, ChatRefused)
    assert answer.kind == "engine"
    assert door.game.core.statistics()["turns"] == 0
    assert door.game.desk.counters.accounts == {
        "stopped": len(renderer().tokenizer.encode("cat" + STOP))
    }


def test_a_part_that_says_otherwise_ends_the_turn_and_its_sampling() -> None:
    """The engine goes on with a reply that nobody will take, to its last token."""
    door = Door(engines=("engine-0", "engine-1"))
    request = door.ask()
    door.part(0, 5)
    key, ask, _ = door.game.open_ask()
    del door.game.asks[key]
    door.handle(Unanswered(key, ask.to, "dead"))
    sampled = door.game.open_ask()[2].request_id
    door.part(0, 5, text="cats and dogs and mice")
    answer = door.game.replies[request]
    assert isinstance(answer, ChatRefused)
    assert answer.kind == "engine"
    assert aborts(door.game) == [sampled]


def test_a_part_of_a_turn_that_is_over_is_no_news() -> None:
    """It was on its way when the answer came."""
    door = Door()
    door.ask()
    late = door.game.open_ask()[2].request_id
    door.sample()
    content = door.content
    part = GeneratedPart(
        request_id=late, start=0, token_ids=to_bulk(renderer().tokenizer.encode("x"))
    )
    door.handle(Received("engine-0", part))
    assert door.content == content


def test_a_client_that_is_gone_stops_its_turn_and_nobody_elses() -> None:
    """What it asked for is aborted and counted; a newer turn of the session is not its business."""
    door = Door()
    first = door.ask()
    door.handle(Received(DOOR, ClientGone(trajectory_id="g.0", number=99, reason="gone")))
    assert first not in door.game.replies
    door.handle(
        Received(DOOR, ClientGone(trajectory_id="g.0", number=first.message_id, reason="gone"))
    )
    aborts = [each.message for each in door.game.told if isinstance(each.message, AbortRequests)]
    assert len(aborts) == 1
    assert door.game.core.statistics()["clients_gone"] == 1
    door.game.asks.clear()
    second = door.ask()
    door.handle(
        Received(DOOR, ClientGone(trajectory_id="g.0", number=first.message_id, reason="gone"))
    )
    door.sample()
    assert isinstance(door.game.replies[second], ChatReply)


def test_the_core_finds_a_session_by_its_address_only() -> None:
    """Names of the run are public; ids of free sessions are secrets by themselves."""
    game = play()
    addresses = game.desk.addresses = Addresses("http://x", b"secret")
    game.open("g.0")
    free = spec("f" * 32, deliver_to="")
    game.ask(OpenSessions(sessions=(free,)), DOOR)
    assert game.core.find("g.0") is None
    found = game.core.find(addresses.key("g.0", 0))
    assert found is not None
    assert found.spec.trajectory_id == "g.0"
    assert game.core.find(addresses.key("g.0", 1)) is None
    assert game.core.find("f" * 32) is not None
    assert game.core.find("e" * 32) is None


def test_a_stream_whose_last_token_is_its_stop_token_is_no_other_than_the_whole_reply() -> None:
    """An engine may say that the bound ended it: both read it without its stop token."""
    door = Door()
    request = door.ask()
    key, ask, generate = door.game.open_ask()
    del door.game.asks[key]
    told = reply_to(generate, TEXT + STOP, finish_reason=FinishReason.LENGTH)
    door.handle(Answered(key, ask.to, told))
    answer = door.game.replies[request]
    assert isinstance(answer, ChatReply), answer
    assert answer.finish_reason is FinishReason.STOP
    assert door.content == answer.message["content"]
    assert STOP not in door.content
