"""Where prompts come from: a JSONL file, or a function of the user's.

A file has one JSON object on each line, with `messages` (a list of chat messages, required) and
optionally `label` (any JSON value), `metadata` (an object), `tools` (OpenAI tool definitions) and
`prompt_id` (a string, by default the file's name and line). `FILE.jsonl@[a:b]` takes the prompts
a to b, counted from 0, with Python's meaning of negative and missing bounds; `~` at its beginning
is the home folder. Messages and tools are held to what a session takes later
(`session.validation`), and have no other fields than `FIELDS`. Text parts are joined into one text.

A function is named `module:function` and called as `function(split, seed, options)`, where split
is `train` or `held_out`; it returns or yields `Prompt` objects.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.validation import check_messages, check_tools
from milepost.configs.read import home_of
from milepost.configs.run import DataConfig
from milepost.configs.suggest import did_you_mean
from milepost.messages.shared import ChatMessage, Prompt

PROMPTS_MAX: Final = 10_000_000
SLICE: Final = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]", re.DOTALL)
BOUND_CHARS_MAX: Final = 18
LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
FIELDS: Final = ("role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id")
TEXTS: Final = ("name", "reasoning_content", "tool_call_id")


class PromptError(ValueError):
    """A source of prompts cannot be read; the text says where and why."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    label: Any = None
    metadata: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    prompt_id: str = ""


def load_train_prompts(data: DataConfig, seed: int) -> list[Prompt]:
    """The prompts of `data.prompts` with split `train`.

    Raises:
        PromptError: the source cannot be read, is empty, or repeats a prompt id.
    """
    return load_prompts(data.prompts, "train", seed, data.options)


def load_held_out_prompts(data: DataConfig, seed: int) -> list[Prompt]:
    """The prompts that nothing is trained on.

    Raises:
        PromptError: as above, or a file source without `data.held_out_prompts`.
    """
    source = data.held_out_prompts or data.prompts
    if not data.held_out_prompts and is_file(source):
        raise PromptError(
            f"data.prompts is the file {source!r}, which has no held-out part: set "
            f"data.held_out_prompts, e.g. to {SLICE_EXAMPLE!r}"
        )
    return load_prompts(source, "held_out", seed, data.options)


SLICE_EXAMPLE: Final = "FILE.jsonl@[-100:]"


def is_file(source: str) -> bool:
    """True when `source` names a file, not a function."""
    return _path_of(source).endswith(".jsonl")


def file_of(source: str) -> Path:
    """The file that `source` names, if it names one."""
    return Path(home_of(_path_of(source)))


def _path_of(source: str) -> str:
    return match["path"] if (match := SLICE.fullmatch(source)) else source


def load_prompts(source: str, split: str, seed: int, options: dict[str, Any]) -> list[Prompt]:
    """Every prompt of `source`, in its own order.

    Raises:
        PromptError: see the module.
    """
    read = _from_file(source) if is_file(source) else _from_function(source, split, seed, options)
    prompts = list(islice(read, PROMPTS_MAX + 1))
    if not prompts:
        raise PromptError(f"prompt source {source!r} is empty for split {split!r}")
    if len(prompts) > PROMPTS_MAX:
        raise PromptError(f"prompt source {source!r} yields more than {PROMPTS_MAX} prompts")
    _refuse_repeats(source, prompts)
    return prompts


def _refuse_repeats(source: str, prompts: list[Prompt]) -> None:
    seen: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first = seen.setdefault(prompt.prompt_id, index)
        if first != index:
            raise PromptError(
                f"prompt source {source!r}: prompts {first} and {index} are both called "
                f"{prompt.prompt_id!r}"
            )


# ---- files -------------------------------------------------------------------------------


def _from_file(source: str) -> list[Prompt]:
    path, part = file_of(source), _part_of(source)
    try:
        with path.open("rb") as file:
            prompts = list(_parse_lines(path, file))
    except OSError as error:
        raise PromptError(f"prompt file {path} cannot be read: {error.strerror}") from error
    return prompts[part]


def _part_of(source: str) -> slice:
    match = SLICE.fullmatch(source)
    bounds = match.group("start", "stop") if match else ("", "")
    if (length := max(map(len, bounds))) > BOUND_CHARS_MAX:
        raise PromptError(
            f"prompt file {file_of(source)}: a bound of its @[a:b] has {length} characters, "
            f"{BOUND_CHARS_MAX} at most are read"
        )
    if "-" in bounds:
        raise PromptError(f"prompt source {source!r}: a bound is `-`, with no number behind it")
    return slice(*(int(bound) if bound else None for bound in bounds))


def _parse_lines(path: Path, lines: Iterable[bytes]) -> Iterator[Prompt]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        try:
            parsed = decoder.decode(text)
        except msgspec.DecodeError as error:
            what = _half_a_character(text) or str(error)
            raise PromptError(f"{path}, line {number}: {what}") from error
        except RecursionError as error:
            raise PromptError(f"{path}, line {number}: nested too deep to be read") from error
        yield Prompt(
            prompt_id=parsed.prompt_id or f"{path.stem}:{number}",
            messages=_checked(parsed.messages, parsed.tools, f"{path}, line {number}"),
            label=parsed.label,
            metadata=parsed.metadata,
            tools=parsed.tools,
        )


def _half_a_character(line: bytes) -> str:
    """Names the lone surrogate of a line that msgspec finds truncated or malformed; or empty."""
    try:
        written = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
    if not (match := LONE_SURROGATE.search(written)):
        return ""
    return (
        f"a text in it has \\u{ord(match[0]):04x}, half of a surrogate pair: it is no Unicode text"
    )


def _checked(
    messages: list[ChatMessage], tools: list[dict[str, Any]], where: str
) -> list[ChatMessage]:
    """The messages as a session would take them: text parts are joined into one text."""
    if problem := _problem_with(messages):
        raise PromptError(f"{where}: {problem}")
    try:
        checked = check_messages(messages)
        check_tools(tools)
    except TurnRefused as refused:
        raise PromptError(f"{where}: {refused}") from refused
    return checked


def _problem_with(messages: list[ChatMessage]) -> str:
    if not messages:
        return "`messages` is empty, a prompt needs at least one"
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            known = ", ".join(ROLES)
            return f"unknown role {role!r} at $.messages[{index}], known are {known}"
        if not (message.get("tool_calls") or message.get("content") is not None):
            return f"neither `content` nor `tool_calls` at $.messages[{index}]"
        for name in message:
            if name not in FIELDS:
                known = did_you_mean(name, FIELDS) or f"known are {', '.join(FIELDS)}"
                return f"unknown field `{name}` at $.messages[{index}], {known}"
            if name in TEXTS and not isinstance(message[name], str | None):
                return f"`{name}` is {message[name]!r} at $.messages[{index}], not a text"
    return ""


# ---- functions ---------------------------------------------------------------------------


def _from_function(source: str, split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    function = resolve(source)
    for index, prompt in enumerate(function(split, seed, options)):
        if not isinstance(prompt, Prompt):
            raise PromptError(
                f"{source} yielded {type(prompt).__name__} as prompt {index} of split {split!r}, "
                f"it must yield milepost.messages.shared.Prompt"
            )
        where = f"{source}, prompt {index} of split {split!r}"
        yield replace(prompt, messages=_checked(prompt.messages, prompt.tools, where))


def resolve(path: str) -> Callable[..., Any]:
    """The function called `module:function`.

    Raises:
        PromptError: no such module or function.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise PromptError(f"{path!r} is neither FILE.jsonl nor module:function")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise PromptError(f"{path!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise PromptError(f"{path!r}: module {module_name} has no function {name}")
    found: Callable[..., Any] = function
    return found
