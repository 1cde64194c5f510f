"""What a session tells of its conversation to an agent host that has not seen all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from milepost.messages.session import ConversationAsked, ConversationTold

if TYPE_CHECKING:
    from milepost.actors.session.state import Session
    from milepost.messages.shared import ChatMessage

DEPTH_MAX: Final = 16
"""Of a field of a message. The bus takes 32 in all, JSON through the HTTP door 100."""


def told(session: Session, asked: ConversationAsked) -> ConversationTold:
    """All up to the newest reply that somebody received, unless the asker has that already.

    A reply that was written to nobody may be the newest: its client had closed its connection.
    """
    received = session.heard.union(asked.received)
    places = {
        number: (branch, place)
        for branch in session.record.branches()
        for place, number in enumerate(branch.path)
        if number in received
    }
    if not places:
        return ConversationTold(limit=session.refused_by, fault=session.fault)
    generation = max(places)
    branch, place = places[generation]
    limit = session.bounds.get(generation, branch.cut_by)
    said = [] if generation == asked.known else branch.messages[: branch.ends[place]]
    return ConversationTold(
        generation=generation,
        received=tuple(sorted(session.heard)),
        num_turns=len(places),
        messages=[_carried(one) for one in said],
        limit=session.refused_by or (limit if generation == branch.path[-1] else ""),
        fault=session.fault,
    )


def _carried(message: ChatMessage) -> ChatMessage:
    """The message as the bus can carry it, whose numbers have 64 bits.

    Where a client's JSON is beyond that, arguments of calls become text, as OpenAI has them, and
    labels of the client's own are left out, of the message and of its calls.
    """
    if all(_fits(value, DEPTH_MAX) for value in message.values()):
        return message
    carried = dict(message)
    if calls := message.get("tool_calls"):
        carried["tool_calls"] = [_with_text(call) for call in calls]
    return _fitting(carried, DEPTH_MAX)


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if isinstance(arguments := function.get("arguments"), dict):
        function = {**function, "arguments": msgspec.json.encode(arguments).decode()}
    # A call stands in a list of the message, its function in the call.
    call = {**call, "function": _fitting(function, DEPTH_MAX - 3)}
    return _fitting(call, DEPTH_MAX - 2)


def _fitting(fields: dict[str, Any], depth: int) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if _fits(value, depth)}


def _fits(value: object, depth: int) -> bool:
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return depth > 0 and all(_fits(one, depth - 1) for one in value)
    return True
