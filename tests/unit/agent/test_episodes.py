"""The user's code on an event loop: whatever it does, its host lives and the verdict is right."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from unit.agent.kit import QUESTION, FakeBus, order, refused, reply

from milepost.actors.agent import Agent, Episode, LimitReached, Reply, RewardInput, RewardResult
from milepost.actors.agent import episodes as module
from milepost.actors.agent.core import CollectAlive, RunCode, StopCode, TakePart
from milepost.actors.agent.episodes import Episodes, Rewards
from milepost.messages.agent import ChatPart
from milepost.messages.bus import Incoming, Unanswered
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import ChatTurn, ConversationAsked, ConversationTold
from milepost.messages.shared import EpisodeLimits

Code = Callable[[Episode], Awaitable[None]]


class CodeAgent(Agent):
    """Runs a function as its episodes."""

    def __init__(self, code: Code) -> None:
        self._code = code

    async def run(self, episode: Episode) -> None:
        await self._code(episode)


def hosted(code: Code, bus: Any = None, function: Any = None, deadline_s: float = 5.0) -> Episodes:
    """A host whose sessions answer every chat, unless told."""
    rewards = Rewards(function, None, deadline_s)
    return Episodes(CodeAgent(code), bus or FakeBus(lambda _: reply()), rewards)


async def run(host: Episodes, **fields: Any) -> EpisodeEnded:
    """One episode to its end."""
    ended = await host.perform(RunCode("run/g.0/0", order(**fields)))
    assert isinstance(ended, EpisodeEnded)
    return ended


async def chat_and_report(episode: Episode) -> None:
    """The shortest good agent."""
    await episode.chat([QUESTION])
    episode.report(reward=1.0)


async def test_an_episode_that_reports_is_completed() -> None:
    """Asked under its own name, at its own session."""
    bus = FakeBus(lambda _: reply())
    ended = await run(hosted(chat_and_report, bus))
    assert (ended.status.value, ended.reward, ended.num_turns) == ("completed", 1.0, 1)
    assert bus.asked[0][0] == "session-0"
    assert 60.0 < bus.asked[0][2] <= 65.0, "the question outlives the episode's own time"


async def raises(episode: Episode) -> None:
    await episode.chat([QUESTION])
    raise RuntimeError("tool broke")


async def exits(episode: Episode) -> None:
    await episode.chat([QUESTION])
    sys.exit(3)


async def cancels_itself(episode: Episode) -> None:
    await episode.chat([QUESTION])
    raise asyncio.CancelledError


async def reports_nan(episode: Episode) -> None:
    await episode.chat([QUESTION])
    try:
        episode.report(reward=float("nan"))
    except ValueError:
        episode.report(reward=1.0)


async def never_chats(episode: Episode) -> None:
    episode.report(reward=1.0)


async def reports_nothing(episode: Episode) -> None:
    await episode.chat([QUESTION])


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (raises, "RuntimeError: tool broke, at "),
        (exits, "RuntimeError: the agent raised SystemExit"),
        (cancels_itself, "CancelledError: the agent cancelled itself"),
        (reports_nan, "bad report: reward is nan"),
        (never_chats, "no reply of the model: it called no chat"),
        (reports_nothing, "the agent reported no reward"),
    ],
)
async def test_what_goes_wrong_in_an_agent_is_a_failure_with_its_cause(
    code: Code, cause: str
) -> None:
    """One failed trajectory, never a zero, and never the end of the host."""
    ended = await run(hosted(code))
    assert (ended.status.value, ended.reward) == ("failed", None)
    assert cause in ended.cause


async def test_a_fault_of_the_service_is_no_reward_even_when_the_agent_swallows_it() -> None:
    """Empty text and a zero for a dead engine would poison the group's baseline in silence."""

    async def swallows(episode: Episode) -> None:
        await episode.chat([QUESTION])
        try:
            await episode.chat([QUESTION])
        except Exception:  # noqa: BLE001 - as careless agents do
            episode.report(reward=0.0)

    answers: Any = iter([reply(), Unanswered("session-0", "dead")])
    ended = await run(hosted(swallows, FakeBus(lambda _: next(answers))))
    assert ended.status.value == "failed"
    assert "session-0 did not answer" in ended.cause


@pytest.mark.parametrize("catches", [True, False])
async def test_a_limit_truncates_with_its_name_whether_the_agent_catches_it_or_not(
    catches: bool,  # noqa: FBT001
) -> None:
    """What was reported before counts."""

    async def code(episode: Episode) -> None:
        await episode.chat([QUESTION])
        episode.report(reward=0.25)
        try:
            await episode.chat([QUESTION])
        except LimitReached:
            if not catches:
                raise

    answers: Any = iter([reply(), refused("limit", "turns_max")])
    ended = await run(hosted(code, FakeBus(lambda _: next(answers))))
    assert (ended.status.value, ended.reward, ended.cause) == ("truncated", 0.25, "turns_max")


async def test_a_request_made_shorter_and_served_truncates_nothing() -> None:
    """The refusal changed no token of the row: the episode came to its own end."""

    async def code(episode: Episode) -> None:
        await episode.chat([QUESTION])
        try:
            await episode.chat([QUESTION, QUESTION])
        except LimitReached:
            await episode.chat([QUESTION])
        episode.report(reward=0.25)

    answers: Any = iter([reply(), refused("limit", "tokens_max"), reply()])
    ended = await run(hosted(code, FakeBus(lambda _: next(answers))))
    assert (ended.status.value, ended.reward, ended.cause) == ("completed", 0.25, "")


async def test_time_ends_an_episode_and_leaves_the_question_to_the_bus() -> None:
    """The code is cancelled in its chat; the bus's future is not: its answer may still come."""
    bus = FakeBus(lambda _: reply() if len(bus.asked) == 1 else None)
    cleaned = asyncio.Event()

    async def code(episode: Episode) -> None:
        await episode.chat([QUESTION])
        episode.report(reward=0.5)
        try:
            await episode.chat([QUESTION])
        finally:
            cleaned.set()

    ended = await run(hosted(code, bus), limits=EpisodeLimits(seconds_max=0.01))
    assert (ended.status.value, ended.reward, ended.cause) == ("truncated", 0.5, "seconds_max")
    assert cleaned.is_set()
    (_, late) = bus.futures
    assert not late.cancelled()
    late.set_exception(Unanswered("session-0", "too late"))


async def test_a_stopped_episode_is_aborted_with_the_reason() -> None:
    """Its verdict is fixed; the code hears of it at its next await."""
    bus = FakeBus(lambda _: None)
    host = hosted(chat_and_report, bus)
    running = asyncio.create_task(run(host))
    await bus.on_ask.wait()
    await host.perform(StopCode("stop/1", "run/g.0/0", "group dropped"))
    await host.perform(StopCode("stop/2", "run/g.7/0", "unknown"))
    ended = await running
    assert (ended.status.value, ended.cause) == ("aborted", "group dropped")
    assert not bus.futures[0].cancelled()


async def test_code_that_refuses_to_end_is_left_behind_without_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be killed on an event loop, but it cannot reach a session any more either."""
    monkeypatch.setattr(module, "GRACE_S", 0.01)
    go_on, faults = asyncio.Event(), []

    async def stubborn(episode: Episode) -> None:
        await episode.chat([QUESTION])
        episode.report(reward=1.0)
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            await episode.chat([QUESTION])
        except RuntimeError as fault:
            faults.append(str(fault))

    bus = FakeBus(lambda _: reply())
    host = hosted(stubborn, bus)
    ended = await run(host, limits=EpisodeLimits(seconds_max=0.01))
    assert (ended.status.value, ended.cause) == ("truncated", "seconds_max")
    (task,) = host._left_behind
    go_on.set()
    await asyncio.wait({task}, timeout=5.0)
    assert faults == ["episode g.0 is over"]
    assert len(bus.asked) == 1


async def test_episodes_with_a_reply_are_alive_once() -> None:
    """Collected between two words to the rollout actor."""
    host = hosted(chat_and_report)
    await run(host)
    assert await host.perform(CollectAlive("alive")) == ("g.0",)
    assert await host.perform(CollectAlive("alive")) == ()


# ---- asynchronous reward functions -------------------------------------------------------


async def test_an_asynchronous_reward_function_is_awaited_here() -> None:
    """It sees the conversation, the label, and what the agent reported."""
    seen: list[RewardInput] = []

    async def judge(given: RewardInput) -> RewardResult:
        seen.append(given)
        return RewardResult(reward=float(given.text == given.label), metrics={"solved": 1.0})

    async def code(episode: Episode) -> None:
        await episode.chat([QUESTION])
        episode.report(reward=0.1, metrics={"calls": 3})

    ended = await run(hosted(code, function=judge))
    assert (ended.status.value, ended.reward) == ("completed", 1.0)
    assert ended.metrics == {"calls": 3.0, "solved": 1.0}
    (given,) = seen
    assert (given.reported, given.status, given.limit) == (0.1, "completed", "")
    assert [message["role"] for message in given.messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (float("nan"), "reward is nan"),
        (None, "reward is None, a number is needed"),
        ((1.0, {"x": "y"}), "metric x is 'y'"),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
        (asyncio.CancelledError(), "raised CancelledError"),
        (SystemExit(3), "it raised SystemExit"),
        (asyncio.Event(), "took longer than 0.01 s"),
    ],
)
async def test_a_reward_function_that_fails_is_one_failed_trajectory(
    value: Any, cause: str
) -> None:
    """Never a zero: the policy did nothing wrong."""

    async def judge(_: RewardInput) -> Any:
        if isinstance(value, BaseException):
            raise value
        if isinstance(value, asyncio.Event):
            await value.wait()
        return value

    ended = await run(hosted(chat_and_report, function=judge, deadline_s=0.01))
    assert (ended.status.value, ended.reward) == ("failed", None)
    assert cause in ended.cause


async def test_no_reward_is_computed_for_an_episode_that_failed() -> None:
    """It would judge a conversation that the failure cut short."""

    async def judge(_: RewardInput) -> float:
        raise AssertionError("called")

    ended = await run(hosted(raises, function=judge))
    assert "tool broke" in ended.cause


ADDRESS = "http://127.0.0.1:1/sessions/x"
SAID = [QUESTION, {"role": "assistant", "content": "cat"}]


async def talks_over_http(episode: Episode) -> None:
    """A black box: what it says to the model goes past us."""
    episode.report(metrics={"steps": 1.0})


async def by_text(given: RewardInput) -> RewardResult:
    return RewardResult(reward=float(given.text == "cat"), metrics={"n": len(given.messages)})


async def test_what_was_said_over_http_is_asked_of_the_session_before_it_is_judged() -> None:
    """A reward function sees messages, and results turns, as for an agent that chats."""
    bus = FakeBus(lambda _: ConversationTold(generation=2, num_turns=2, messages=SAID))
    ended = await run(hosted(talks_over_http, bus, by_text), address=ADDRESS)
    assert (ended.status.value, ended.reward, ended.num_turns) == ("completed", 1.0, 2)
    assert (ended.metrics, ended.generation) == ({"steps": 1.0, "n": 2.0}, 2)
    [(to, asked, _)] = bus.asked
    assert to == "session-0"
    assert asked == ConversationAsked(trajectory_id="g.0", attempt=0, known=0)


@pytest.mark.parametrize(
    ("told", "status", "cause"),
    [
        (ConversationTold(), "failed", "the episode has no reply of the model: it called no chat"),
        (
            ConversationTold(limit="turns_max", generation=1, num_turns=1, messages=SAID),
            "truncated",
            "turns_max",
        ),
        (
            ConversationTold(fault="engine: gone", generation=1, num_turns=1, messages=SAID),
            "failed",
            "engine: gone",
        ),
        (refused("unknown_session"), "failed", "unknown_session: because of unknown_session"),
        (Unanswered("session-0", "it died"), "failed", "session-0 did not tell the conversation"),
    ],
)
async def test_how_a_black_box_s_conversation_ended_decides_as_if_it_had_been_ours(
    told: Any, status: str, cause: str
) -> None:
    """A program that swallows the door's error and prints a reward has none all the same."""
    bus = FakeBus(lambda _: told)
    ended = await run(hosted(talks_over_http, bus, by_text), address=ADDRESS)
    assert ended.status.value == status
    assert ended.cause.startswith(cause)
    assert (ended.reward is None) == (status == "failed")


async def test_an_agent_that_chats_keeps_its_own_conversation_where_there_is_a_door() -> None:
    """The session is asked for what is newer, and has nothing."""

    def answer(message: Any) -> Any:
        if isinstance(message, ChatTurn):
            return reply("cat", generation=1)
        assert message.known == 1
        return ConversationTold(generation=1, num_turns=1)

    ended = await run(hosted(chat_and_report, FakeBus(answer), by_text), address=ADDRESS)
    assert (ended.status.value, ended.reward, ended.metrics["n"]) == ("completed", 1.0, 2.0)


async def test_parts_of_a_reply_reach_the_code_that_waits_and_stop_at_a_gap() -> None:
    """A part that was lost would make the rest read wrong; the reply itself has everything."""
    seen: list[str] = []

    async def reads(episode: Episode) -> None:
        async for piece in episode.stream([QUESTION]):
            seen.append(piece.text if isinstance(piece, Reply) else piece.content)
            if piece.__class__ is not Reply:
                got.set()
        episode.report(reward=1.0)

    got = asyncio.Event()
    bus = FakeBus(lambda _: None)
    host = hosted(reads, bus)
    running = asyncio.create_task(run(host))
    await bus.on_ask.wait()
    _, turn, _ = bus.asked[0]
    assert isinstance(turn, ChatTurn)
    for number, content in ((1, "c"), (3, "lost")):
        part = ChatPart(stream=turn.stream, number=number, content=content)
        await host.perform(TakePart(f"part/{number}", part))
    await got.wait()
    bus.futures[0].set_result(Incoming("session-0", 0, 1, 0, reply("cat")))
    assert (await running).reward == 1.0
    assert seen == ["c", "cat"]
    late = ChatPart(stream=turn.stream, number=2, content="late")
    await host.perform(TakePart("part/late", late))
