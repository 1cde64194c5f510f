"""A Hugging Face chat template: Jinja in a sandbox, with the names such templates expect.

Rendered as the Hugging Face libraries render it: blocks trimmed, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, `break` and `continue`, and `{% generation %}` blocks around what
an assistant produces.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from milepost.actors.session.text.sources import (
    CONFIG_FILE,
    TEMPLATE_FILE,
    hash_of_sources,
    template_sources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from jinja2.parser import Parser
    from jinja2.runtime import Macro

    from milepost.messages.shared import ChatMessage

OPEN_MARK: Final = "\ue0f0"
CLOSE_MARK: Final = "\ue0f1"
"""Private-use characters around generation blocks while their places are looked for."""
INSTRUCTING: Final = frozenset({"system", "developer"})
"""Roles that a template may leave out without a word."""
_PROBE: Final = "probe"
_PROBE_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": []},
    },
}
TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What foreign template code may raise."""


class RenderFailed(ValueError):
    """The template refuses the conversation, or renders what cannot be used; says which and why."""


class TemplateRaised(RenderFailed):
    """The template itself refuses the conversation, on purpose."""


class ChatTemplate:
    """Renders conversations as text.

    Args:
        sources: template texts by name; `default`, and perhaps `tool_use`.
        named_tokens: `bos_token`, `eos_token`, ... of the tokenizer.
        options: further variables, the same for every rendering (`enable_thinking`, ...).

    Raises:
        RenderFailed: a source is no valid template, or there is no default one.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        named_tokens: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        arguments_as_objects: bool = False,
    ) -> None:
        self._arguments_as_objects = arguments_as_objects
        if "default" not in sources:
            raise RenderFailed(f"no chat template named default, there are {sorted(sources)}")
        self._sources = dict(sources)
        self._variables = {**(named_tokens or {}), **(options or {})}
        self.content_hash = hash_of_sources(sources)
        self._plain = self._compiled(mark=False)
        self._marking: dict[str, jinja2.Template] | None = None
        self._writes: dict[tuple[str, bool, bool], bool] = {}
        """(role, whether it stands first, whether there are tools) -> whether such a message is
        written at all. With tools it may be another template, or another branch of one."""

    @property
    def marks_generation(self) -> bool:
        """Whether the template says itself what the assistant produces."""
        return any("endgeneration" in source for source in self._sources.values())

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] = (),
        *,
        generate: bool,
    ) -> str:
        """The conversation as text; with `generate`, up to where the assistant begins to speak.

        Raises:
            RenderFailed: the template raised; the text has its reason.
        """
        return self._render(self._plain, messages, tools, generate=generate)

    def render_generated(
        self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> tuple[str, list[tuple[int, int]]]:
        """The conversation, and the [start, end) of each `{% generation %}` block in it.

        Raises:
            RenderFailed: the template raised, or a message holds one of our marks.
        """
        if self._marking is None:
            self._marking = self._compiled(mark=True)
        marked = self._render(self._marking, messages, tools, generate=False)
        plain = self.render(messages, tools, generate=False)
        spans, end = [], 0
        text = ""
        while (start := marked.find(OPEN_MARK, end)) >= 0:
            close = marked.find(CLOSE_MARK, start)
            text += marked[end:start]
            body = marked[start + 1 : close]
            spans.append((len(text), len(text) + len(body)))
            text += body
            end = close + 1
        if text + marked[end:] != plain:
            raise RenderFailed(
                "generation blocks cannot be located: a message holds U+E0F0 or U+E0F1, "
                "or the template changes what a block renders"
            )
        return plain, spans

    def _render(
        self,
        compiled: Mapping[str, jinja2.Template],
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
        *,
        generate: bool,
    ) -> str:
        if any(message["role"] == "developer" for message in messages):
            messages = [
                self._instructing(message, is_first=at == 0, has_tools=bool(tools))
                for at, message in enumerate(messages)
            ]
        if self._arguments_as_objects:
            messages = [_with_objects(message) for message in messages]
        try:
            return self._template(compiled, has_tools=bool(tools)).render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generate,
                **self._variables,
            )
        except _Refused as error:
            raise TemplateRaised(f"the chat template raised {error}") from error
        except TEMPLATE_FAULTS as error:
            raise RenderFailed(f"the chat template raised {_told(error)}") from error

    @staticmethod
    def _template(compiled: Mapping[str, jinja2.Template], *, has_tools: bool) -> jinja2.Template:
        return compiled["tool_use" if has_tools and "tool_use" in compiled else "default"]

    def check_instructions(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] = (),
        *,
        is_begun: bool,
    ) -> None:
        """Refuse words of a system or developer that the template would leave out.

        Args:
            messages: of a client.
            tools: that they are rendered with.
            is_begun: others stand before them.

        Raises:
            RenderFailed: the model would never see one of them.
        """
        for index, message in enumerate(messages):
            role, is_first = message["role"], index == 0 and not is_begun
            # Of a message that says nothing, nothing is lost.
            if role not in INSTRUCTING or not str(message.get("content") or "").strip():
                continue
            if not any(
                self._is_written(one, is_first=is_first, has_tools=bool(tools))
                for one in (role, "system")
            ):
                where = "at the beginning" if is_first else "after other messages"
                raise RenderFailed(
                    f"the chat template writes nothing of a {role} message {where} (message "
                    f"{index} of what is new): say it as the user, or leave it out"
                )

    def _instructing(self, message: ChatMessage, *, is_first: bool, has_tools: bool) -> ChatMessage:
        """A developer's words as the system's, where the template does not write them.

        As OpenAI's models have it, where the one took the place of the other. A template that
        raises on the role is asked the same way.
        """
        if message["role"] != "developer" or self._is_written(
            "developer", is_first=is_first, has_tools=has_tools
        ):
            return message
        return {**message, "role": "system"}

    def _is_written(self, role: str, *, is_first: bool, has_tools: bool) -> bool:
        known = self._writes.get((role, is_first, has_tools))
        if known is None:
            asked, probe = {"role": "user", "content": "one"}, {"role": role, "content": _PROBE}
            messages = [probe, asked] if is_first else [asked, probe]
            try:
                text = self._template(self._plain, has_tools=has_tools).render(
                    messages=messages,
                    tools=[_PROBE_TOOL] if has_tools else None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._variables,
                )
                known = _PROBE in text
            except TEMPLATE_FAULTS:
                # It says itself why not, in the conversation that it is asked for. A developer's
                # words are then tried as the system's.
                known = role != "developer"
            self._writes[role, is_first, has_tools] = known
        return known

    def _compiled(self, *, mark: bool) -> dict[str, jinja2.Template]:
        environment = _environment(mark=mark)
        try:
            return {name: environment.from_string(text) for name, text in self._sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise RenderFailed(
                f"the chat template is no valid Jinja: line {error.lineno}: {error.message}"
            ) from error


def load_template(
    folder: Path,
    *,
    named_tokens: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    arguments_as_objects: bool = False,
    bundled: str = "",
) -> ChatTemplate:
    """Read chat_template.jinja, or the `chat_template` of tokenizer_config.json.

    Args:
        folder: of the model.
        named_tokens: variables of the template.
        options: more variables.
        arguments_as_objects: whether it takes the arguments of a call as an object.
        bundled: template that comes with Milepost, used where the folder has none; or empty.

    Raises:
        RenderFailed: neither is there, or it does not compile.
    """
    sources = template_sources(folder, bundled)
    if not sources:
        raise RenderFailed(
            f"no chat template in {folder}: neither {TEMPLATE_FILE} nor "
            f"`chat_template` in {CONFIG_FILE}"
        )
    return ChatTemplate(
        sources,
        named_tokens=named_tokens,
        options=options,
        arguments_as_objects=arguments_as_objects,
    )


def _with_objects(message: ChatMessage) -> ChatMessage:
    """The message, its calls' arguments read; those that are no JSON object stay as they are."""
    if not (calls := message.get("tool_calls")):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    if not isinstance(read, dict):
        return call
    function = {**function, "arguments": read}
    return {**call, "function": function} if "function" in call else function


class _Refused(jinja2.TemplateError):
    """What `raise_exception` in a template raises."""


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: transparent, or marked when asked."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - the library reads it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_surround")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _surround(self, caller: Macro) -> str:
        text: str = caller()
        return (
            f"{OPEN_MARK}{text}{CLOSE_MARK}"
            if self.environment.globals["marks_generation_blocks"]
            else text
        )


def _environment(*, mark: bool) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock()
    environment.globals["marks_generation_blocks"] = mark
    return environment


def _clock() -> Callable[[str], str]:
    # Read once: a conversation must not see the date change between two of its turns.
    now = datetime.now(tz=UTC).astimezone()
    return now.strftime


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _told(error: BaseException) -> str:
    text = str(error) or "no reason given"
    return text if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {text}"
