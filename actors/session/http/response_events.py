"""A reply as items of OpenAI's Responses, whole or as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.actors.session.http.dialect import event
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.families import ReplyDelta
    from milepost.actors.session.http.dialect import About, Fault
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import Usage


def response_id(about: About) -> str:
    """Id of the response to a request."""
    return f"resp_{about.serial}"


def body_of(about: About, reply: ChatReply) -> dict[str, Any]:
    """The whole `response` of a reply."""
    message, serial = reply.message, about.serial
    items: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        items.append(_reasoning(f"rs_{serial}_0", reasoning))
    calls = message.get("tool_calls", ())
    if message["content"] or not (items or calls):
        items.append(_message(f"msg_{serial}_{len(items)}", message["content"]))
    for call in calls:
        function = call["function"]
        name, arguments = function["name"], function["arguments"]
        items.append(_call(f"fc_{serial}_{len(items)}", call["id"], name, arguments))
    return closed(about, items, reply)


def opened(about: About) -> dict[str, Any]:
    """The `response` before anything was sampled."""
    return _body(about, "in_progress", [], None)


def closed(about: About, items: list[dict[str, Any]], reply: ChatReply) -> dict[str, Any]:
    """The `response` with its items, at its end."""
    if reply.finish_reason is FinishReason.LENGTH:
        body = _body(about, "incomplete", items, _usage(reply.usage))
        return {**body, "incomplete_details": {"reason": "max_output_tokens"}}
    return _body(about, "completed", items, _usage(reply.usage))


class ResponseEvents:
    """Writes response.created, items with their deltas, response.completed.

    Args:
        about: the reply.
    """

    def __init__(self, about: About) -> None:
        self._about = about
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._kind = ""
        """Of the open item: reasoning, message, or none."""
        self._texts: list[str] = []

    def begin(self) -> bytes:
        """response.created and response.in_progress."""
        response = opened(self._about)
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=response) for kind in kinds)

    def deltas(self, deltas: Sequence[ReplyDelta]) -> bytes:
        """Items open, grow and close."""
        written: list[bytes] = []
        for delta in deltas:
            if delta.reasoning:
                written += self._switch("reasoning")
                written.append(self._text("reasoning_text", delta.reasoning))
            if delta.content:
                written += self._switch("message")
                written.append(self._text("output_text", delta.content))
            for call in delta.tool_calls:
                written += self._close()
                number = len(self._items)
                item_id = f"fc_{self._about.serial}_{number}"
                whole = _call(item_id, call.call_id, call.name, call.arguments)
                begun = {**whole, "arguments": "", "status": "in_progress"}
                place = {"output_index": number, "item_id": item_id}
                kind = "response.function_call_arguments"
                written += [
                    self._event("response.output_item.added", output_index=number, item=begun),
                    self._event(f"{kind}.delta", **place, delta=call.arguments),
                    self._event(f"{kind}.done", **place, arguments=call.arguments, name=call.name),
                    self._event("response.output_item.done", output_index=number, item=whole),
                ]
                self._items.append(whole)
        return b"".join(written)

    def end(self, reply: ChatReply) -> bytes:
        """response.completed, or response.incomplete."""
        written = self._close()
        if not self._items:
            written += [*self._switch("message"), *self._close()]
        response = closed(self._about, self._items, reply)
        written.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(written)

    def fault(self, fault: Fault) -> bytes:
        """response.failed."""
        response = _body(self._about, "failed", self._items, None)
        error = {"code": "server_error", "message": fault.reason}
        return self._event("response.failed", response={**response, "error": error})

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _item_id(self) -> str:
        prefix = "rs" if self._kind == "reasoning" else "msg"
        return f"{prefix}_{self._about.serial}_{len(self._items)}"

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id(), "output_index": len(self._items), "content_index": 0}

    def _switch(self, kind: str) -> list[bytes]:
        if self._kind == kind:
            return []
        written = self._close()
        self._kind = kind
        item = self._item("", "in_progress")
        number = len(self._items)
        part = item["content"][0]
        begun = {**item, "content": []}
        written.append(self._event("response.output_item.added", output_index=number, item=begun))
        written.append(self._event("response.content_part.added", **self._place(), part=part))
        return written

    def _text(self, kind: str, text: str) -> bytes:
        self._texts.append(text)
        extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        return self._event(f"response.{kind}.delta", **self._place(), delta=text, **extra)

    def _close(self) -> list[bytes]:
        if not self._kind:
            return []
        text, self._texts = "".join(self._texts), []
        item = self._item(text, "completed")
        kind = "reasoning_text" if self._kind == "reasoning" else "output_text"
        extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        number, part = len(self._items), item["content"][0]
        written = [
            self._event(f"response.{kind}.done", **self._place(), text=text, **extra),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event("response.output_item.done", output_index=number, item=item),
        ]
        self._items.append(item)
        self._kind = ""
        return written

    def _item(self, text: str, status: str) -> dict[str, Any]:
        item_id = self._item_id()
        make = _reasoning if self._kind == "reasoning" else _message
        return {**make(item_id, text), "status": status}


def _body(
    about: About, status: str, items: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "id": response_id(about),
        "object": "response",
        "created_at": int(about.created_s),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": about.asked.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "truncation": "disabled",
        "usage": usage,
        "metadata": {},
        **(about.asked.echo or {}),
    }


def _reasoning(item_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "summary": [], "content": content}


def _message(item_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def _call(item_id: str, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
