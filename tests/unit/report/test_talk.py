"""Two conversations out of many, and how they read."""

from __future__ import annotations

from typing import Any

from milepost.launch.report.talk import Said, pick, reading
from milepost.messages.evaluator import Transcript


def talk(version: int, prompt: str, reward: float, length: int = 2, **more: Any) -> Transcript:
    messages = [{"role": "user", "content": "q"}] * length
    facts = {"greedy": False, **more}
    return Transcript(version=version, prompt_id=prompt, reward=reward, messages=messages, **facts)


def test_the_pair_is_about_one_prompt_that_failed_before_and_succeeds_now() -> None:
    talks = [
        talk(0, "a", 1.0),
        talk(0, "b", 0.0),
        talk(0, "c", 0.0),
        talk(80, "a", 1.0, length=9),
        talk(80, "b", 1.0, length=4),
        talk(80, "c", 1.0, length=6),
        talk(40, "c", 1.0, length=9),
    ]
    old, new = pick(talks, 0, 80)
    assert (old, new) == (talks[2], talks[5])


def test_sampled_conversations_come_before_greedy_ones() -> None:
    talks = [
        talk(0, "a", 0.0, greedy=True),
        talk(8, "a", 1.0, greedy=True),
        talk(0, "a", 0.2),
        talk(8, "a", 0.3),
    ]
    assert pick(talks, 0, 8) == (talks[2], talks[3])


def test_without_a_common_prompt_each_side_shows_what_it_has() -> None:
    talks = [talk(0, "a", 0.0), talk(8, "b", 1.0)]
    assert pick(talks, 0, 8) == (talks[0], talks[1])
    assert pick(talks[:1], 0, 8) == (talks[0], None)
    assert pick([], 0, 8) == (None, None)


def test_messages_read_like_a_play() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}

    said = reading(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Go"}]},
            {"role": "assistant", "content": " So. ", "tool_calls": [call('{"a": "x", "b": 2}')]},
            {"role": "assistant", "content": None, "tool_calls": [call("{oops"), call("[1]")]},
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "content": "Done"},
        ]
    )
    assert list(said) == [
        Said("system", "Be brief."),
        Said("user", '[{"type":"text","text":"Go"}]'),
        Said("model", "So."),
        Said("call", "f(a=x, b=2)"),
        Said("call", "f({oops)"),
        Said("call", "f([1])"),
        Said("tool", "ok"),
        Said("model", "Done"),
    ]
