"""What happened in a simulated run, a line for each delivery."""

from __future__ import annotations

from milepost.actors.effects import Answered, Event, Received, Taken, Unanswered, Woken, WorkDone
from milepost.messages.shared import Message


def describe(event: Event) -> str:
    """One line: who said what, with the names and numbers in it."""
    match event:
        case Received(source, message, request):
            return f"{source}{'?' if request else ':'} {brief(message)}"
        case Answered(key, source, message):
            return f"{source} answers {key}: {brief(message)}"
        case Unanswered(key, to, reason):
            return f"{to} does not answer {key}: {reason}"
        case WorkDone(key, _, error):
            return f"work {key} done {error}"
        case Woken(key):
            return f"woken for {key}"
        case Taken(key):
            return f"taken {key}"


def brief(message: Message) -> str:
    """The message with the fields that tell it from others of its type."""
    shown = []
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, str | int | float | bool):
            shown.append(f"{name}={value}")
        elif isinstance(value, tuple | list) and name.endswith(("ids", "stored")):
            shown.append(f"{name}={list(value)}")
        elif name == "trajectory":
            versions = sorted({span.version for span in value.spans})
            shown.append(f"{value.trajectory_id} versions={versions} reward={value.reward}")
    return f"{type(message).__name__}({', '.join(shown)})"
