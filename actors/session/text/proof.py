"""The proof that a family fits a tokenizer and a template: by rendering, on many conversations.

For each shape of conversation, with what the session would do on one side and the template's own
rendering of the whole on the other:

- the delta is what the template adds after a real history, whatever dummy base it was rendered on;
- prompt, reply, seam and delta, put together as a row, are the canonical rendering;
- a reply is read back as the message it was rendered from;
- a shorter conversation is a prefix of the longer one.

A template may rewrite what an assistant said before, as Qwen3's does when it drops old reasoning.
The row keeps what was sampled, so that is a note; every other difference is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from milepost.actors.session.families import Seam, make_family
from milepost.actors.session.text.mismatch import compare_rows, first_place
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import RenderFailed, TemplateRaised, load_template
from milepost.actors.session.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.messages.shared import ChatMessage

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Look something up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "count": {"type": "integer"}},
            },
        },
    }
    for name in ("look_up", "count_up")
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    shape: str
    """Which conversation shows it."""
    what: str
    is_fault: bool
    """False: the template rewrites what was said; the row keeps it."""

    def __str__(self) -> str:
        """In one line."""
        return f"{self.shape}: {self.what}"


@dataclass(frozen=True, slots=True)
class Shape:
    """One conversation: a history that ends with a reply, and what follows it."""

    name: str
    before: list[ChatMessage]
    reply: ChatMessage
    after: list[ChatMessage]
    tools: list[dict[str, Any]]


def make_renderer(folder: Path, family_name: str, options: Mapping[str, Any]) -> Renderer:
    """Tokenizer, template and family of a model's folder.

    Raises:
        FileNotFoundError: no tokenizer.
        UnknownFamily: no such family, or it does not fit the tokenizer.
        RenderFailed: no template, a broken one, or an option that the family fixes.
    """
    tokenizer = load_tokenizer(folder)
    family = make_family(family_name, tokenizer)
    fixed = family.template_options
    for name, value in options.items():
        if fixed.get(name, value) != value:
            raise RenderFailed(
                f"family {family_name} needs the template option {name} = {fixed[name]!r}, "
                f"$.actors.session.template_options says {value!r}"
            )
    template = load_template(
        folder,
        named_tokens=tokenizer.named_tokens,
        options={**options, **fixed},
        arguments_as_objects=family.arguments_as_objects,
        bundled=family.bundled_template,
    )
    return Renderer(tokenizer, template, family)


def prove(renderer: Renderer) -> Iterator[Finding]:
    """Everything that does not fit, shape by shape; a good pair has no fault."""
    refused = rendered = 0
    for shape in shapes(renderer):
        try:
            yield from _of_shape(renderer, shape)
            rendered += 1
        except TemplateRaised as error:
            # Then the session refuses such a turn, by the template's own words.
            refused += 1
            yield Finding(shape.name, str(error), is_fault=False)
        except RenderFailed as error:
            yield Finding(shape.name, str(error), is_fault=True)
    if refused and not rendered:
        yield Finding("all", "the template renders no conversation at all", is_fault=True)


def shapes(renderer: Renderer) -> Iterator[Shape]:
    """Conversations with tools, parallel calls, reasoning, empty and strange texts."""
    roles = renderer.family.appended_roles
    asked = _said("user", "one")
    plain = _said("assistant", "two")
    thought = {**plain, "reasoning_content": "hm"}
    yield Shape("a second question", [asked], plain, [_said("user", "three")], [])
    yield Shape("a question after reasoning", [asked], thought, [_said("user", "three")], [])
    yield Shape(
        "blank, long and unicode text",
        [_said("user", "  né \U0001f98a\n\n\tend ")],
        _said("assistant", "日本 < > & {{ x }}\n\n- a\n- b"),
        [_said("user", "\n ü \n")],
        [],
    )
    yield Shape("nothing after the reply", [asked], plain, [], [])
    yield Shape("two questions at once", [asked], plain, [asked, _said("user", "three")], [])
    yield Shape("an empty reply", [asked], _said("assistant", ""), [_said("user", "three")], [])
    if "system" in roles:
        rules = _said("system", "rules")
        yield Shape("a system prompt", [rules, asked], plain, [_said("user", "three")], [])
    if "tool" not in roles:
        return
    for name, reply, results in _calls():
        yield Shape(name, [asked], reply, results, TOOLS)
    call = _call(0, "look_up", '{"key": "a", "count": 2}')
    silent = {**_said("assistant", ""), "tool_calls": [call]}
    long = [asked, silent, _result(0, "cat")]
    yield Shape(
        "the second call", long, {**silent, "tool_calls": [_again()]}, [_result(7, "x")], TOOLS
    )
    yield Shape("an answer after a call", long, plain, [_said("user", "three")], TOOLS)


def _calls() -> Iterator[tuple[str, ChatMessage, list[ChatMessage]]]:
    one = _call(0, "look_up", '{"key": "né", "count": 2}')
    two = _call(1, "count_up", '{"key": "7"}')
    silent = _said("assistant", "")
    cat, dog = _result(0, "cat"), _result(1, "")
    yield "one call", {**silent, "tool_calls": [one]}, [cat]
    yield "a call after words", {**silent, "content": "I look.", "tool_calls": [one]}, [cat]
    thought = {**silent, "reasoning_content": "hm", "tool_calls": [one]}
    yield "a call after reasoning", thought, [cat]
    yield "a call, its result and a question", thought, [cat, _said("user", "three")]
    yield "parallel calls", {**silent, "tool_calls": [one, two]}, [cat, dog]


def _said(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"functions.{name}:{index}", "type": "function", "function": function}


def _again() -> dict[str, Any]:
    return _call(7, "count_up", '{"count": 3}')


def _result(index: int, content: str) -> ChatMessage:
    name = "count_up" if index else "look_up"
    call_id = f"functions.{name}:{index}"
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}


def _of_shape(renderer: Renderer, shape: Shape) -> Iterator[Finding]:
    template, family, tokenizer = renderer.template, renderer.family, renderer.tokenizer
    prompt = template.render(shape.before, shape.tools, generate=True)
    history = [*shape.before, shape.reply]
    through = template.render(history, shape.tools, generate=False)
    whole = template.render([*history, *shape.after], shape.tools, generate=True)
    calls = shape.reply.get("tool_calls") or []
    delta = renderer.text(renderer.delta(shape.after, calls, shape.tools))
    if not whole.endswith(delta):
        at = first_place(whole[::-1], delta[::-1])
        told = f"after a history the template writes {whole[-at - 40 :]!r}"
        yield Finding(shape.name, f"{told}, after the dummy base {delta!r}", is_fault=True)
    if not through.startswith(prompt):
        at = first_place(prompt, through)
        told = f"prompt ends {prompt[at:]!r}, the reply is rendered after {through[at : at + 40]!r}"
        yield Finding(shape.name, told, is_fault=False)
        return
    reply_text, stop = _reply_of(renderer, through[len(prompt) :])
    yield from _read_back(renderer, shape, prompt, reply_text)
    row = tokenizer.encode(prompt).tolist() + tokenizer.encode(reply_text).tolist() + [stop]
    if shape.after:
        seam: Seam = family.seam(stop)
        row = [*row[: len(row) - seam.drop], *seam.insert, *tokenizer.encode(delta).tolist()]
        canonical = whole
    else:
        canonical = through
    for found in compare_rows(canonical, row, tokenizer, family):
        yield Finding(shape.name, str(found), is_fault=found.kind != "assistant_text")


def _reply_of(renderer: Renderer, written: str) -> tuple[str, int]:
    """Text of a rendered reply without its end, and the stop token that a model would sample."""
    tokenizer, family = renderer.tokenizer, renderer.family
    texts = [tokenizer.decode([token]) for token in family.stop_token_ids]
    ends = [(at, text) for text in texts if (at := written.rfind(text)) >= 0]
    if not ends:
        # The end of the reply is the opening of the next message.
        return written.rstrip("\n"), family.stop_token_ids[0]
    at, text = max(ends)
    return written[:at], family.stop_token_ids[texts.index(text)]


def _read_back(renderer: Renderer, shape: Shape, prompt: str, reply_text: str) -> Iterator[Finding]:
    parser = renderer.family.reply_parser(prompt[-64:], turn=0, tools=shape.tools)
    parser.feed(reply_text)
    parser.finish()
    reply = parser.reply()
    calls = [(each.name, each.arguments) for each in reply.tool_calls]
    expected = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in shape.reply.get("tool_calls") or ()
    ]
    same_calls = len(calls) == len(expected) and all(
        ours[0] == theirs[0] and _json(ours[1]) == _json(theirs[1])
        for ours, theirs in zip(calls, expected, strict=False)
    )
    content = str(shape.reply.get("content") or "")
    if not same_calls:
        told = f"{reply_text!r} is read as calls {calls}, it was rendered from {expected}"
        yield Finding(shape.name, told, is_fault=True)
    elif reply.content.strip() != content.strip():
        told = f"{reply_text!r} is read as {reply.content!r}, it was rendered from {content!r}"
        # A template may leave out what was said beside a call.
        yield Finding(shape.name, told, is_fault=content.strip() in reply_text)


def _json(text: str) -> Any:
    return json.loads(text)
