"""What a client may send. Everything else is refused by name, never quietly dropped or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from milepost.messages.shared import ChatMessage

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
SERVER_FIELDS: Final = frozenset(
    {
        "cached_tokens",
        "echo",
        "indexer_topk",
        "input_ids",
        "logprob_start_len",
        "logprobs",
        "loss_mask",
        "meta_info",
        "no_stop_trim",
        "output_ids",
        "output_token_logprobs",
        "prompt_logprobs",
        "prompt_token_ids",
        "return_hidden_states",
        "return_indexer_topk",
        "return_logprob",
        "return_meta_info",
        "return_routed_experts",
        "return_token_ids",
        "routed_experts",
        "routed_experts_start_len",
        "token_ids",
        "token_ids_logprob",
        "token_logprobs",
        "top_logprobs",
    }
)
"""Tokens, offsets, log-probs and their capture belong to the server."""
UNCARRIED: Final = frozenset(
    {
        "attachments",
        "audio",
        "audio_url",
        "audios",
        "file",
        "files",
        "function_call",
        "image",
        "image_url",
        "images",
        "input_audio",
        "refusal",
        "video",
        "video_url",
        "videos",
    }
)
"""What a message says beside its text and its tool calls, and no template would write. Clients send
what they read back, so null and empty ones pass."""


def refuse_server_fields(fields: Iterable[str], where: str) -> None:
    """Refuse a request that tries to set what only the server may.

    Raises:
        TurnRefused: kind bad_request; names the fields.
    """
    if SERVER_FIELDS.isdisjoint(fields):
        return
    named = sorted(SERVER_FIELDS.intersection(fields))
    raise TurnRefused(
        "bad_request",
        f"{where} carries {', '.join(named)}: token ids, log-probs and their capture are the "
        "server's, leave them out",
    )


def check_messages(
    messages: Sequence[ChatMessage], known: Sequence[ChatMessage] = ()
) -> list[ChatMessage]:
    """The messages, with text parts joined into one text.

    Args:
        messages: of a client.
        known: messages that were checked before; those that repeat them need no second look.

    Raises:
        TurnRefused: kind bad_request; names the message, the field and its value.
    """
    if not messages:
        raise TurnRefused("bad_request", "messages are empty, at least one is needed")
    same = 0
    for checked, message in zip(known, messages, strict=False):
        if message != checked:
            break
        same += 1
    checked_now = [check_message(messages[at], at) for at in range(same, len(messages))]
    return [*messages[:same], *checked_now]


def check_tools(tools: Sequence[object]) -> None:
    """Refuse tools that are not in the OpenAI shape.

    Raises:
        TurnRefused: kind bad_request.
    """
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TurnRefused("bad_request", f"tools[{index}] has no function with a name: {tool}")
        # Whoever reads a call looks its types up here.
        schema = function.get("parameters")
        if schema is None:
            continue
        if not isinstance(schema, dict):
            raise _no_object(schema, index, "parameters")
        properties = schema.get("properties")
        if properties is not None and not isinstance(properties, dict):
            raise _no_object(properties, index, "parameters.properties")


def _no_object(value: object, index: int, name: str) -> TurnRefused:
    told = f"tools[{index}].function.{name} is {type(value).__name__}, an object is taken"
    return TurnRefused("bad_request", told)


def check_message(message: ChatMessage, index: int) -> ChatMessage:
    """One message, as `check_messages` gives it.

    Raises:
        TurnRefused: kind bad_request.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise TurnRefused(
            "bad_request",
            f"messages[{index}] has role {role!r}, known are {', '.join(sorted(ROLES))}",
        )
    refuse_server_fields(message, f"messages[{index}]")
    if not UNCARRIED.isdisjoint(message):
        _check_uncarried(message, index)
    if (calls := message.get("tool_calls")) is not None:
        _check_calls(calls, index)
    reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise TurnRefused(
            "bad_request",
            f"messages[{index}].reasoning_content is {type(reasoning).__name__}, text is taken",
        )
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    return {**message, "content": _joined(content, index)}


def _check_uncarried(message: ChatMessage, index: int) -> None:
    if said := sorted(name for name in UNCARRIED.intersection(message) if message[name]):
        raise TurnRefused(
            "bad_request",
            f"messages[{index}] carries {', '.join(said)}: the model would not see it, only text "
            "and tool_calls are carried; say it in content, or leave it out",
        )


def _joined(content: object, index: int) -> str:
    if not isinstance(content, list):
        raise TurnRefused(
            "bad_request",
            f"messages[{index}].content is {type(content).__name__}, text or text parts are taken",
        )
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise TurnRefused(
                "bad_request",
                f"messages[{index}].content[{place}] is of type {kind}: only text is carried, "
                "no images, audio or files",
            )
        texts.append(text)
    return "".join(texts)


def _check_calls(calls: object, index: int) -> None:
    if not isinstance(calls, list):
        raise TurnRefused("bad_request", f"messages[{index}].tool_calls is no list: {calls!r}")
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TurnRefused(
                "bad_request",
                f"messages[{index}].tool_calls[{place}] has no function with a name: {call!r}",
            )
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str | dict):
            raise TurnRefused(
                "bad_request",
                f"messages[{index}].tool_calls[{place}].function.arguments is "
                f"{type(arguments).__name__}, the text of a JSON object is taken",
            )
