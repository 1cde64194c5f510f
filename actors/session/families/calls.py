"""How tool calls are written inside their tags, format by format.

Each reader takes the text between a family's tags and gives the calls in it, or None when it is
malformed: then the text stays visible as it was sampled. Arguments that a format writes as JSON
stay the text that was sampled. Formats that write bare values get their types from the tool's
schema: text stays text, also where it looks like a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from milepost.actors.session.text.nesting import is_deep
from milepost.messages.shared import ChatMessage, ToolCall


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a reader knows beside the text."""

    turn: int
    """Number of the reply, which no other of its session has."""
    tools: Sequence[Mapping[str, Any]]
    """In the OpenAI shape."""

    def call_id(self, index: int) -> str:
        """For formats that do not write one: unique in the session."""
        return f"call_{self.turn}_{index}"

    def types(self, function: str) -> dict[str, frozenset[str]]:
        """JSON types that each parameter of a function may have, as far as the tools say."""
        for tool in self.tools:
            schema = tool.get("function", tool)
            if schema.get("name") == function:
                properties = (schema.get("parameters") or {}).get("properties") or {}
                return {name: _kinds(value) for name, value in properties.items()}
        return {}


_MADE: Final = re.compile("call_([0-9]{1,15})_[0-9]+")


def greatest_number(messages: Iterable[ChatMessage]) -> int:
    """Of the replies whose calls these messages quote, by their ids; 0: there are none."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    made = (_MADE.fullmatch(str(call.get("id"))) for call in calls)
    return max((int(match[1]) for match in made if match), default=0)


CallReader: TypeAlias = Callable[[str, int, CallContext], tuple[ToolCall, ...] | None]
"""(text between the tags, calls before it in the reply, context) -> calls, or None."""


class _JsonCall(Struct):
    name: str
    arguments: Raw = Raw(b"")
    parameters: Raw = Raw(b"")


def parse_json_call(body: str, call_id: str) -> ToolCall | None:
    """A call written as `{"name": ..., "arguments": {...}}`; None when it is anything else.

    The arguments stay the text that was sampled: spacing, key order and number formats included.
    `parameters` is read as `arguments`.
    """
    if is_deep(body):
        return None
    try:
        call = msgspec.json.decode(body.strip(), type=_JsonCall)
    except msgspec.MsgspecError:
        return None
    arguments = bytes(call.arguments or call.parameters or b"{}").decode()
    # The text was passed over, not read: what clients parse must be JSON to the last character.
    if not call.name or not is_object(arguments):
        return None
    return ToolCall(call_id=call_id, name=call.name, arguments=arguments)


def json_call(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """Qwen3: one JSON object."""
    call = parse_json_call(body, context.call_id(index))
    return (call,) if call else None


Tags: TypeAlias = tuple[re.Pattern[str], ...]
"""What opens a piece of markup, what stands between its texts, and what closes it."""


def _tags(opens: str, *others: str) -> Tags:
    """White space may stand before what opens."""
    return (re.compile(rf"\s*{opens}"), *(re.compile(tag) for tag in others))


def pieces(tags: Tags, text: str) -> list[Any] | None:
    """All pieces of a text that is made of them and of white space; None when it is not.

    Each is a tuple: what the tags' groups and the texts between the tags say, in their order. Every
    tag is looked for from the end of the last one, and the first that is missing ends the search. A
    policy may open as many calls as it likes and close none: one pattern for a whole piece would
    search to the end at each opening, and nothing else of the process runs meanwhile.
    """
    opens, *others = tags
    found = []
    at = 0
    while match := opens.match(text, at):
        fields = list(match.groups())
        for tag in others:
            start = match.end()
            if (match := tag.search(text, start)) is None:
                return None
            fields += [text[start : match.start()], *match.groups()]
        found.append(tuple(fields))
        at = match.end()
    return None if text[at:].strip() else found


_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
PARAMETER: Final = _tags(r"<parameter=([^>\n]+)>", r"</parameter>")


def function_call(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """Qwen3-Coder, Qwen3.5, Nemotron 3: `<function=f> <parameter=p> value </parameter> ...`."""
    if (match := _FUNCTION.fullmatch(body)) is None:
        return None
    name, inside = match.group(1).strip(), match.group(2)
    if (found := pieces(PARAMETER, inside)) is None:
        return None
    pairs = [(key.strip(), _without_margin(value)) for key, value in found]
    return _typed(name, pairs, index, context)


ARGUMENT: Final = _tags(r"<arg_key>", r"</arg_key>\s*<arg_value>", r"</arg_value>")


def glm_call(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """GLM-4.5 and later: `name <arg_key>k</arg_key> <arg_value>v</arg_value> ...`."""
    name, key, rest = body.partition("<arg_key>")
    if not name.strip() or "<" in name or (found := pieces(ARGUMENT, key + rest)) is None:
        return None
    return _typed(name.strip(), [(key.strip(), value) for key, value in found], index, context)


INVOKE: Final = _tags(r'<(?:｜DSML｜)?invoke name="([^"]*)">', r"</(?:｜DSML｜)?invoke>")
NAMED: Final = _tags(r'<parameter name="([^"]*)">', r"</parameter>")
DSML: Final = _tags(
    r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">', r"</｜DSML｜parameter>"
)


def invoke_calls(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """MiniMax: several `<invoke name="f"> <parameter name="p">value</parameter> </invoke>`."""
    calls: list[ToolCall] = []
    for name, inside in pieces(INVOKE, body) or ():
        if (pairs := pieces(NAMED, inside)) is None:
            return None
        made = _typed(name, pairs, index + len(calls), context)
        if made is None:
            return None
        calls += made
    return tuple(calls) or None


def dsml_calls(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """DeepSeek V3.2 and V4: as MiniMax, and each value says whether it is text or JSON."""
    calls: list[ToolCall] = []
    for name, inside in pieces(INVOKE, body) or ():
        values: dict[str, Any] = {}
        if (found := pieces(DSML, inside)) is None:
            return None
        for key, is_text, value in found:
            if is_text == "true":
                values[key] = value
                continue
            if is_deep(value):
                return None
            try:
                values[key] = msgspec.json.decode(value)
            except msgspec.MsgspecError:
                return None
        calls.append(_made(name, values, context.call_id(index + len(calls))))
    return tuple(calls) if calls and all(call.name for call in calls) else None


KIMI: Final = _tags(
    r"<\|tool_call_begin\|>", r"<\|tool_call_argument_begin\|>", r"<\|tool_call_end\|>"
)


def kimi_calls(body: str, index: int, context: CallContext) -> tuple[ToolCall, ...] | None:
    """Kimi K2: the model writes each call's id, `functions.NAME:NUMBER`, and JSON."""
    del index, context
    calls = []
    for written, arguments in pieces(KIMI, body) or ():
        call_id, text = written.strip(), arguments.strip()
        name = call_id.partition(":")[0].removeprefix("functions.")
        if not name or not is_object(text):
            return None
        calls.append(ToolCall(call_id=call_id, name=name, arguments=text))
    return tuple(calls) or None


def is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    if is_deep(text):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.MsgspecError:
        return False


def _without_margin(value: str) -> str:
    """The line break after the opening tag and before the closing one belong to the format."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(
    name: str, pairs: Iterable[tuple[str, str]], index: int, context: CallContext
) -> tuple[ToolCall, ...] | None:
    if not name:
        return None
    types = context.types(name)
    values = {key: _value(text, types.get(key, _UNTOLD)) for key, text in pairs}
    return (_made(name, values, context.call_id(index)),)


def _made(name: str, values: dict[str, Any], call_id: str) -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments=msgspec.json.encode(values).decode())


_UNTOLD: Final[frozenset[str]] = frozenset()
_NESTED: Final = frozenset({"array", "object"})


def _kinds(schema: Any) -> frozenset[str]:
    """JSON types that a schema lets a value have; empty: it does not say."""
    if not isinstance(schema, dict):
        return _UNTOLD
    told = schema.get("type")
    if isinstance(told, str):
        return frozenset((told,))
    if isinstance(told, list):
        return frozenset(kind for kind in told if isinstance(kind, str))
    parts = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(parts, list):
        kinds = [_kinds(part) for part in parts]
        # What one of them leaves open is open.
        return _UNTOLD.union(*kinds) if all(kinds) else _UNTOLD
    values = schema.get("enum")
    is_text = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return frozenset(("string",)) if is_text else _UNTOLD


def _value(text: str, kinds: frozenset[str]) -> Any:
    """A bare value under the types of its schema; without any, what JSON says, or else text.

    Where a schema takes text, it is text, also where it looks like a number. Only null, and what is
    nested, are told from it.
    """
    if kinds == {"string"} or is_deep(text):
        return text
    try:
        value = msgspec.json.decode(text.strip())
    except msgspec.MsgspecError:
        return text
    if "string" in kinds:
        is_null = value is None and "null" in kinds
        is_nested = isinstance(value, list | dict) and not kinds.isdisjoint(_NESTED)
        return value if is_null or is_nested else text
    return text if not kinds and isinstance(value, str) else value
