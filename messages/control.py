"""What the bus itself says, to any actor."""

from __future__ import annotations

from milepost.messages.shared import Message, NonNegative


class NotUnderstood(Message, kw_only=True):
    """The receiver cannot read a message; it was not handed to the actor.

    Sent for an unknown type, another major version, another run, or a body that does not fit
    its type. The header's cause is the id of the refused message.
    """

    type: str
    """Type of the refused message, as sent."""
    major: NonNegative
    """Protocol version of the refusing side."""
    minor: NonNegative
    reason: str
