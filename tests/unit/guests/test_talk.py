"""A guest's chat: whole or in pieces, superseded, refused; every question has one answer."""

from __future__ import annotations

import asyncio
from typing import Any

from unit.agent.kit import QUESTION, ScriptedLine, order, refused, reply

from milepost.actors.agent import Episode
from milepost.actors.agent.episode import Record
from milepost.actors.agent.reply import Parts
from milepost.actors.guests.talk import Talk
from milepost.messages.bus import Incoming
from milepost.messages.guests import GuestChat, ReplyPart
from milepost.messages.session import ChatRefused, ChatReply, ChatTurn
from milepost.messages.shared import Message


class Answers:
    """The one method of the bus that a talk uses."""

    def __init__(self) -> None:
        self.given: dict[int, Message] = {}
        self.news = asyncio.Event()

    def reply(self, incoming: Incoming, message: Message) -> None:
        assert incoming.message_id not in self.given, "one answer for each question"
        self.given[incoming.message_id] = message
        self.news.set()

    async def to(self, incoming: Incoming) -> Message:
        while incoming.message_id not in self.given:
            self.news.clear()
            await self.news.wait()
        return self.given[incoming.message_id]


class SlowLine:
    """A session whose reply grows when told."""

    def __init__(self) -> None:
        self.parts: Parts | None = None
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reported(self, record: Record) -> None:
        pass

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        del turn
        self.parts = parts
        self.asked.set()
        return await self.answer


def question(number: int) -> Incoming:
    return Incoming("guest", 0, number, 0, chat())


def chat(**fields: Any) -> GuestChat:
    return GuestChat(token="t", episode_id="g.0/0", messages=[QUESTION], **fields)


async def test_a_chat_is_answered_with_the_reply_or_the_refusal() -> None:
    answers: Any = Answers()
    cut = reply("cat", generation=1, limit="tokens_max")
    line = ScriptedLine(cut, refused("limit", "turns_max"))
    episode = Episode(order(), line)
    first, second = question(1), question(2)
    Talk(answers, episode, first, chat())
    answer = await answers.to(first)
    assert isinstance(answer, ChatReply)
    assert (answer.message["content"], answer.limit) == ("cat", "tokens_max")
    Talk(answers, episode, second, chat())
    answer = await answers.to(second)
    assert isinstance(answer, ChatRefused)
    assert (answer.kind, answer.limit) == ("limit", "turns_max")


async def test_a_streamed_reply_goes_out_as_fast_as_the_guest_asks_on() -> None:
    """What was sampled between two questions comes in one piece; the whole reply is the last."""
    answers: Any = Answers()
    line = SlowLine()
    talk = Talk(answers, Episode(order(), line), question(1), chat(stream=True))
    await line.asked.wait()
    assert line.parts is not None
    line.parts.put("c", "", [])
    assert await answers.to(question(1)) == ReplyPart(content="c")
    assert talk.wants_question
    line.parts.put("a", "hm", [])
    line.parts.put("t", "", [])
    talk.ask_on(question(2))
    assert await answers.to(question(2)) == ReplyPart(content="at", reasoning="hm")
    line.answer.set_result(reply("cat"))
    talk.ask_on(question(3))
    answer = await answers.to(question(3))
    assert isinstance(answer, ChatReply)
    assert answer.message["content"] == "cat"
    assert not talk.wants_question


async def test_a_chat_that_is_stopped_answers_whoever_waits() -> None:
    answers: Any = Answers()
    line = SlowLine()
    talk = Talk(answers, Episode(order(), line), question(1), chat())
    await line.asked.wait()
    talk.stop("a newer request took its place")
    answer = await answers.to(question(1))
    assert isinstance(answer, ChatRefused)
    assert (answer.kind, answer.reason) == ("closed", "a newer request took its place")


async def test_a_fault_of_our_own_is_an_answer_too() -> None:
    """The guest must not wait for the rest of its episode."""
    answers: Any = Answers()
    line = ScriptedLine(AssertionError("a session answered nonsense"))
    Talk(answers, Episode(order(), line), question(1), chat())
    answer = await answers.to(question(1))
    assert isinstance(answer, ChatRefused)
    assert answer.kind == "internal"


async def test_a_stream_that_is_stopped_leaves_no_task_behind() -> None:
    """Each would wait for a part that never comes, for as long as the run lasts."""
    before = asyncio.all_tasks()
    answers: Any = Answers()
    line = SlowLine()
    talk = Talk(answers, Episode(order(), line), question(1), chat(stream=True))
    await line.asked.wait()
    waiting = asyncio.all_tasks() - before
    assert len(waiting) == 3, "the chat, its answers, and the wait for the next part"
    talk.stop("the episode is over")
    done, _ = await asyncio.wait(waiting, timeout=30.0)
    assert done == waiting
