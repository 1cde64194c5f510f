"""What every agent must do right, each as one function whose docstring is its sentence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeAlias

from milepost.actors.agent.conformance.bench import (
    EPISODE_S,
    Bench,
    Ended,
    LoopWatch,
    text_only,
)
from milepost.actors.agent.conformance.script import (
    Action,
    Refuse,
    Say,
    Script,
    Silence,
    fitting_call,
)
from milepost.actors.agent.episodes import GRACE_S
from milepost.messages.session import ChatTurn
from milepost.messages.shared import Status

HELD_S_MAX: Final = 1.0
"""Longest time that code may hold the loop: a heartbeat goes out every second."""
AT_ONCE_S: Final = 300.0
SHORT_S: Final = 3.0
ASKED_AGAIN_MAX: Final = 20

Check: TypeAlias = Callable[[Bench], AsyncIterator[str]]
"""Yields what is wrong, in words; nothing when all is well."""


async def ends_with_a_reward(bench: Bench) -> AsyncIterator[str]:
    """An ordinary episode ends with a reward."""
    for number in range(min(4, len(bench.prompts))):
        ended = await bench.episode(text_only, number=number)
        if not ended.has_reward:
            yield f"prompt {number} ended as {ended.told()}"
        elif ended.verdict.seconds > EPISODE_S:
            yield f"prompt {number} took {ended.verdict.seconds:.0f} s with a model that needs none"


async def tool_calls_are_answered(bench: Bench) -> AsyncIterator[str]:
    """Calls of its tools, with good and with broken arguments, are no error of the agent."""
    tools = bench.prompts[0].tools
    if not tools:
        return
    name, arguments = fitting_call(tools[0])
    calls = {
        "a call with fitting arguments": (name, arguments),
        "arguments that are no JSON": (name, '{"half": '),
        "arguments without the fields of the tool": (name, "{}"),
        "a tool that does not exist": ("no_such_tool", arguments),
    }
    for told, call in calls.items():
        ended = await bench.episode(_first(Say(calls=(call,))))
        if not ended.has_reward:
            yield f"{told}: {ended.told()}"


async def odd_words_are_survived(bench: Bench) -> AsyncIterator[str]:
    """An empty reply, a very long one and one of strange signs are no error of the agent."""
    odd = {
        "an empty reply": "",
        "a reply of 100,000 characters": "word " * 20_000,
        "a reply of signs from everywhere": "\u0000\u202e\U0001f600 </think> <tool_call> {",
    }
    for told, text in odd.items():
        ended = await bench.episode(_first(Say(text=text)))
        if not ended.has_reward:
            yield f"{told}: {ended.told()}"


async def truncation_keeps_its_reward(bench: Bench) -> AsyncIterator[str]:
    """A reply cut off at a token bound, or a bound of turns, leaves a truncated episode."""
    scripts: dict[str, Script] = {
        "a first reply that is cut off": _first(Say(text="cut", is_cut=True)),
        "turns_max before the second reply": _then(1, Refuse("limit", "turns_max")),
        "tokens_max before the second reply": _then(1, Refuse("limit", "tokens_max")),
    }
    for told, script in scripts.items():
        ended = await bench.episode(script)
        if not ended.has_reward:
            remedy = "report what there is before each chat, and let LimitReached end the episode"
            yield f"{told}: {ended.told()}; {remedy}"


async def bounds_keep_the_reward(bench: Bench) -> AsyncIterator[str]:
    """A reply cut off at a token bound, or a bound of turns, leaves a truncated episode."""
    remedy = "print a result also when a request is refused for a bound of the episode"
    ended = await bench.episode(_first(Say(text="cut", is_cut=True)))
    if not ended.has_reward:
        yield f"a first reply that is cut off: {ended.told()}; {remedy}"
    ended = await bench.episode(text_only, turns_max=1)
    if not ended.has_reward:
        yield f"turns_max = 1, no second reply: {ended.told()}; {remedy}"


async def nothing_outlives_it(bench: Bench) -> AsyncIterator[str]:
    """A stopped episode leaves nobody behind who still waits for the model."""
    ended = await bench.episode(_silent, stop_when_silent=True)
    for problem in _left_behind(ended):
        yield problem


def _left_behind(ended: Ended) -> Iterator[str]:
    if ended.is_held_open:
        yield f"{GRACE_S:g} s after its end somebody still holds its request open"


async def engine_errors_fail(bench: Bench) -> AsyncIterator[str]:
    """An engine error in mid-turn fails the episode, soon, and gives no reward."""
    for turn in (0, 1):
        ended = await bench.episode(_then(turn, Refuse("engine")))
        if ended.has_reward and len(ended.conversation.requests) > turn:
            yield f"turn {turn + 1} failed in the engine, and the episode is {ended.told()}"
        num_after = len(ended.conversation.requests) - turn - 1
        if num_after > ASKED_AGAIN_MAX:
            yield f"it asked {num_after} times more after the engine's error; let it raise"


async def cancellation_is_obeyed(bench: Bench) -> AsyncIterator[str]:
    """A cancelled episode stops within the grace it has, while it waits for the model."""
    ended = await bench.episode(_silent, stop_when_silent=True)
    if ended.verdict.status is not Status.ABORTED:
        yield f"stopped in its first chat, it ended as {ended.told()}"
    if ended.seconds > GRACE_S:
        yield f"it goes on more than {GRACE_S:g} s after its cancellation; let CancelledError pass"


async def time_ends_it(bench: Bench) -> AsyncIterator[str]:
    """An episode out of time ends at its bound, whatever it waits for."""
    ended = await bench.episode(_then(1, Silence()), seconds_max=0.5)
    if ended.seconds > 0.5 + GRACE_S:
        yield f"it goes on more than {GRACE_S:g} s after its time was up"
    if not ended.has_reward:
        yield f"out of time after its first reply: {ended.told()}; report before each chat"


async def time_stops_it(bench: Bench) -> AsyncIterator[str]:
    """An episode ends when its time is up, and leaves nobody behind who waits for the model."""
    ended = await bench.episode(_silent, seconds_max=SHORT_S)
    if ended.seconds > SHORT_S + GRACE_S:
        yield f"it goes on more than {GRACE_S:g} s after its time was up"
    if ended.has_reward:
        yield f"the model never answered, and the episode is {ended.told()}"
    for problem in _left_behind(ended):
        yield problem


async def many_run_at_once(bench: Bench) -> AsyncIterator[str]:
    """512 episodes at once (32 of programs) end with a reward, and the event loop is never held."""
    async with LoopWatch() as watch:
        tasks = {
            asyncio.create_task(bench.episode(text_only, number=number, seconds_max=AT_ONCE_S))
            for number in range(bench.at_once)
        }
        done, _ = await asyncio.wait(tasks)
    bad = Counter(_kind_of(task.result()) for task in done if not task.result().has_reward)
    for told, num in bad.most_common(3):
        yield f"{num} of {bench.at_once} ended as {told}"
    # Starting a process holds the loop until the new process has had a processor, which on a busy
    # machine takes as long as that machine likes: nothing that a program could do better.
    if watch.longest_s > HELD_S_MAX and not bench.is_elsewhere:
        yield (
            f"the event loop was held for {watch.longest_s:.1f} s: no heartbeat and no other "
            "episode goes on meanwhile; use await asyncio.to_thread(...), or a process"
        )


async def histories_append(bench: Bench) -> AsyncIterator[str]:
    """Every request so far was one that a session takes."""
    for fault in bench.faults[:5]:
        yield fault


async def the_seed_decides(bench: Bench) -> AsyncIterator[str]:
    """The same seed and replies give the same requests: members of a group see one world."""
    first, second = [await bench.episode(text_only) for _ in range(2)]
    if _said(first) != _said(second):
        yield "two episodes of one seed differ in what they ask; draw from episode.random only"


CHECKS: Final[tuple[Check, ...]] = (
    ends_with_a_reward,
    tool_calls_are_answered,
    odd_words_are_survived,
    truncation_keeps_its_reward,
    engine_errors_fail,
    cancellation_is_obeyed,
    time_ends_it,
    the_seed_decides,
    many_run_at_once,
    histories_append,
)

HARNESS_CHECKS: Final[tuple[Check, ...]] = (
    ends_with_a_reward,
    tool_calls_are_answered,
    odd_words_are_survived,
    bounds_keep_the_reward,
    engine_errors_fail,
    cancellation_is_obeyed,
    nothing_outlives_it,
    time_stops_it,
    the_seed_decides,
    many_run_at_once,
    histories_append,
)
"""Of an agent whose session is a real one, behind its HTTP door."""


def _first(action: Action) -> Script:
    """This at first, then ordinary words."""

    def script(turn: int, request: ChatTurn) -> Action:
        return action if turn == 0 and len(request.messages) else text_only(turn, request)

    return script


def _then(number: int, action: Action) -> Script:
    """Ordinary words, and from turn `number` on only this."""

    def script(turn: int, request: ChatTurn) -> Action:
        return text_only(turn, request) if turn < number else action

    return script


def _silent(turn: int, request: ChatTurn) -> Action:
    del turn, request
    return Silence()


def _kind_of(ended: Ended) -> str:
    return ended.told()[:300]


def _said(ended: Ended) -> list[object]:
    return [turn.messages for turn in ended.conversation.requests]
