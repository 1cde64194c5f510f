"""Which two conversations are shown, and how their messages read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from milepost.messages.evaluator import Transcript
from milepost.messages.shared import ChatMessage


class Said(Struct, frozen=True):
    """One message as a person reads it."""

    who: str
    """`user`, `model`, `call` (of a tool, by the model) or `tool` (its result)."""
    text: str


def pick(
    transcripts: Sequence[Transcript], first: int, last: int
) -> tuple[Transcript | None, Transcript | None]:
    """One conversation of version `first` and one of version `last`.

    If there is one, they are about the same prompt, failed before and succeeded after, and are
    the longest of that kind. Sampled ones come before greedy ones.
    """
    before = [each for each in transcripts if each.version == first]
    after = [each for each in transcripts if each.version == last]
    pairs = [
        (old, new)
        for old in before
        for new in after
        if (old.prompt_id, old.greedy) == (new.prompt_id, new.greedy)
    ]
    if not pairs:
        return before[0] if before else None, after[0] if after else None
    return max(pairs, key=_how_telling)


def _how_telling(pair: tuple[Transcript, Transcript]) -> tuple[bool, float, int]:
    old, new = pair
    return not old.greedy, new.reward - old.reward, len(new.messages)


def reading(messages: Sequence[ChatMessage]) -> Iterator[Said]:
    """The messages in order; a tool call reads like a call in a program."""
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        match message["role"]:
            case "assistant":
                if content and text.strip():
                    yield Said("model", text.strip())
                for call in message.get("tool_calls") or []:
                    yield Said("call", _call(call["function"]))
            case "tool":
                yield Said("tool", text)
            case role:
                yield Said(str(role), text)


def _call(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    try:
        values = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except msgspec.DecodeError:
        return f"{function['name']}({arguments})"
    if not isinstance(values, dict):
        return f"{function['name']}({arguments})"
    return f"{function['name']}({', '.join(f'{name}={value}' for name, value in values.items())})"


def text_lines(title: str, transcript: Transcript) -> Iterator[str]:
    """A conversation for a terminal."""
    verdict = f"reward {transcript.reward:.2f}"
    yield f"{title}: {verdict}"
    marks = {"user": "?", "model": "=", "call": ">", "tool": "<"}
    for said in reading(transcript.messages):
        yield f"  {marks.get(said.who, said.who)} {said.text}"
