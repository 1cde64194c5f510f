"""A user's own prompts: the documented format, and errors that name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.actors.rollout.prompts import (
    PromptError,
    load_held_out_prompts,
    load_prompts,
    load_train_prompts,
)
from milepost.configs.run import DataConfig
from milepost.messages.shared import Prompt

USER = [{"role": "user", "content": "hello"}]


def jsonl(folder: Path, *lines: object) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return str(path)


def ids(source: str) -> list[str]:
    return [prompt.prompt_id for prompt in load_prompts(source, "train", 0, {})]


def test_a_line_may_have_everything_or_only_messages(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look_up"}}
    full = {"messages": USER, "label": 7, "metadata": {"hops": 2}, "tools": [tool]}
    source = jsonl(tmp_path, {**full, "prompt_id": "mine"}, {"messages": USER})
    first, second = load_prompts(source, "train", 0, {})
    assert (first.prompt_id, first.label, first.metadata) == ("mine", 7, {"hops": 2})
    assert first.tools == [tool]
    assert (second.prompt_id, second.label, second.tools) == ("mine:2", None, [])


def test_empty_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"\n{json.dumps({'messages': USER})}\n\n", encoding="utf-8")
    assert ids(str(path)) == ["mine:2"]


@pytest.mark.parametrize(
    ("bounds", "left"),
    [("[1:3]", "bc"), ("[:2]", "ab"), ("[-2:]", "cd"), ("[:-1]", "abc"), ("[:]", "abcd")],
)
def test_a_slice_takes_part_of_a_file(tmp_path: Path, bounds: str, left: str) -> None:
    """Training and held-out prompts are two slices of one file."""
    source = jsonl(tmp_path, *({"messages": USER, "prompt_id": name} for name in "abcd"))
    assert ids(f"{source}@{bounds}") == list(left)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"messages": []}, "line 2: `messages` is empty"),
        ({"messages": USER, "lable": 1}, "line 2: Object contains unknown field `lable`"),
        ({"messages": "hello"}, r"line 2: Expected `array`, got `str` - at `\$.messages`"),
        ({"messages": [{"role": "human", "content": ""}]}, r"unknown role 'human' at \$.messages"),
        ({"messages": [{"role": "user"}]}, "neither `content` nor `tool_calls`"),
        ({"messages": [{"role": "user", "content": None}]}, "neither `content` nor `tool_calls`"),
        (
            {"messages": [{"role": "tool", "content": "", "tool_call_id": 3}]},
            r"line 2: `tool_call_id` is 3 at \$\.messages\[0\], not a text",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            r"line 2: messages\[0\]\.content is int, text or text parts are taken",
        ),
        (
            {"messages": [*USER, {"role": "user", "content": "", "reasoning": ""}]},
            r"line 2: unknown field `reasoning` at \$\.messages\[1\]",
        ),
        (
            {"messages": USER, "tools": [{"foo": 1}]},
            r"line 2: tools\[0\] has no function with a name: {'foo': 1}",
        ),
        ({"label": 1}, "line 2: Object missing required field `messages`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, said: str) -> None:
    """Skipping it in silence would train on less data than somebody believes."""
    source = jsonl(tmp_path, {"messages": USER}, line)
    with pytest.raises(PromptError, match=said):
        load_prompts(source, "train", 0, {})


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"messages": \n', encoding="utf-8")
    with pytest.raises(PromptError, match=r"mine\.jsonl, line 1: Input data was truncated"):
        load_prompts(str(path), "train", 0, {})


@pytest.mark.parametrize("text", [r"\ud800", r"\ud83d and more", r"\udc00", r"\ud800\u0041"])
def test_half_a_character_is_told_by_its_number(tmp_path: Path, text: str) -> None:
    """Cut between the two halves of an emoji, a text was told as truncated input."""
    path = tmp_path / "mine.jsonl"
    line = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}\n'
    path.write_text(line, encoding="utf-8")
    said = rf"mine\.jsonl, line 1: a text in it has \{text[:6]}, half of a surrogate pair"
    with pytest.raises(PromptError, match=said):
        load_prompts(str(path), "train", 0, {})


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    """Editors write one unasked, and show none."""
    source = jsonl(tmp_path, {"messages": USER}, {"messages": USER})
    path = Path(source)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert ids(source) == ["mine:1", "mine:2"]


@pytest.mark.parametrize("part", ["", "@[:1]"])
def test_a_file_may_lie_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """As the model's, and every other path of a topology."""
    jsonl(tmp_path, {"messages": USER})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ids(f"~/mine.jsonl{part}") == ["mine:1"]
    data = DataConfig(prompts="a:b", held_out_prompts=f"~/mine.jsonl{part}")
    assert [prompt.prompt_id for prompt in load_held_out_prompts(data, 0)] == ["mine:1"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (f"@[:-{'9' * 5000}]", "a bound of its @[a:b] has 5001 characters, 18 at most are read"),
        ("@[-:1]", "a bound is `-`, with no number behind it"),
    ],
)
def test_a_bound_that_is_no_number_to_read_is_told(tmp_path: Path, part: str, said: str) -> None:
    """Not by a traceback of the check."""
    source = jsonl(tmp_path, {"messages": USER})
    assert ids(f"{source}@[:{'9' * 18}]") == ["mine:1"]
    with pytest.raises(PromptError, match=re.escape(said)):
        load_prompts(f"{source}{part}", "train", 0, {})


def test_an_empty_or_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"is empty for split 'train'"):
        load_prompts(jsonl(tmp_path), "train", 0, {})
    with pytest.raises(PromptError, match=r"none\.jsonl cannot be read: No such file"):
        load_prompts(str(tmp_path / "none.jsonl"), "train", 0, {})


def test_two_prompts_of_one_name_are_refused(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *({"messages": USER, "prompt_id": name} for name in "aba"))
    with pytest.raises(PromptError, match="prompts 0 and 2 are both called 'a'"):
        load_prompts(source, "train", 0, {})


def made_up(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """A source of a user's own."""
    for index in range(options["count"]):
        yield Prompt(prompt_id=f"{split}-{seed}-{index}", messages=USER)


def not_prompts(split: str, seed: int, options: dict[str, Any]) -> list[object]:
    return [split, seed, options]


PARTED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": text} for text in "hello"]}
]


def parted(*_: object) -> list[Prompt]:
    return [Prompt(prompt_id="a", messages=PARTED)]


def test_parts_of_a_text_are_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many templates write nothing at all of parts, or write the list as Python does."""
    monkeypatch.setitem(__import__("sys").modules, "mine", __import__("types").ModuleType("mine"))
    monkeypatch.setattr("mine.parted", parted, raising=False)
    for source in (jsonl(tmp_path, {"messages": PARTED}), "mine:parted"):
        assert [prompt.messages for prompt in load_prompts(source, "train", 0, {})] == [USER]
    assert isinstance(PARTED[0]["content"], list), "what a function holds stays as it is"


def test_a_function_gets_split_seed_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mine", __import__("types").ModuleType("mine"))
    monkeypatch.setattr("mine.made_up", made_up, raising=False)
    data = DataConfig(prompts="mine:made_up", options={"count": 2})
    assert [prompt.prompt_id for prompt in load_train_prompts(data, 5)] == [
        "train-5-0",
        "train-5-1",
    ]
    assert load_held_out_prompts(data, 5)[0].prompt_id == "held_out-5-0"
    monkeypatch.setattr("mine.not_prompts", not_prompts, raising=False)
    with pytest.raises(PromptError, match="mine:not_prompts yielded str as prompt 0"):
        load_prompts("mine:not_prompts", "train", 0, {})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere_at_all:prompts", "No module named 'nowhere_at_all'"),
        ("json:prompts", "module json has no function prompts"),
        ("prompts.json", "is neither FILE.jsonl nor module:function"),
    ],
)
def test_a_source_that_is_nothing_is_refused(source: str, said: str) -> None:
    with pytest.raises(PromptError, match=said):
        load_prompts(source, "train", 0, {})


def test_a_file_has_no_held_out_part_of_its_own(tmp_path: Path) -> None:
    """Evaluating on what was trained on looks like success."""
    source = jsonl(tmp_path, *({"messages": USER, "prompt_id": name} for name in "abcd"))
    with pytest.raises(PromptError, match=r"set data.held_out_prompts, e.g. to 'FILE.jsonl@"):
        load_held_out_prompts(DataConfig(prompts=source), 0)
    data = DataConfig(prompts=f"{source}@[:3]", held_out_prompts=f"{source}@[3:]")
    assert [prompt.prompt_id for prompt in load_held_out_prompts(data, 0)] == ["d"]
