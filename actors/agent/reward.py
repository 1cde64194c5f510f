"""Reward functions of their own: what they are given, what they may return."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from msgspec import Struct

from milepost.actors.agent.episode import finite
from milepost.messages.shared import ChatMessage, Prompt


class RewardInput(Struct, frozen=True, kw_only=True):
    """An episode that ended, as its reward function sees it."""

    prompt: Prompt
    messages: list[ChatMessage]
    """The whole conversation, as the agent saw it."""
    status: str
    """`completed` or `truncated`."""
    limit: str = ""
    """The bound that was reached."""
    reported: float | None = None
    """Reward the agent reported, if it did."""
    metrics: dict[str, float] = {}
    info: dict[str, Any] = {}
    """What else the agent reported."""

    @property
    def label(self) -> Any:
        """Of the prompt."""
        return self.prompt.label

    @property
    def text(self) -> str:
        """The last thing the assistant said."""
        said = (m.get("content") for m in reversed(self.messages) if m["role"] == "assistant")
        return next(said, None) or ""


class RewardResult(Struct, frozen=True, kw_only=True):
    """A reward, and metrics beside it."""

    reward: float
    metrics: dict[str, float] = {}


RewardFunction = Callable[[RewardInput], Any]


class RewardFailed(RuntimeError):
    """No reward: the text says why. The episode fails, and is never given one."""


def resolve_reward(path: str) -> RewardFunction:
    """The function at `module:function`.

    Raises:
        ValueError: the path names no function.
        ImportError: the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    function = getattr(import_module(module), name, None) if colon else None
    if not callable(function):
        raise ValueError(f"reward {path!r} names no function; write module:function")
    found: RewardFunction = function
    return found


def is_async(function: RewardFunction) -> bool:
    """Whether it is awaited on the event loop, not called in a worker process."""
    return inspect.iscoroutinefunction(function)


def read_result(value: Any) -> RewardResult:
    """What a reward function returned: a number, a number with metrics, or a `RewardResult`.

    Raises:
        TypeError: something else.
        ValueError: a number that is not finite, or too large.
    """
    if isinstance(value, RewardResult):
        reward, metrics = value.reward, value.metrics
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        reward, metrics = value
    else:
        reward, metrics = value, {}
    return RewardResult(
        reward=finite(reward, "reward"),
        metrics={name: finite(number, f"metric {name}") for name, number in metrics.items()},
    )


async def await_result(value: Awaitable[Any]) -> RewardResult:
    """The same, of an asynchronous function.

    Raises:
        RuntimeError: it would end this whole process, and every other episode with it.
    """
    try:
        return read_result(await value)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it raised {type(error).__name__}") from error
