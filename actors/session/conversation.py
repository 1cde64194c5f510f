"""What a session tells of its conversation to an agent host that has not seen all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from milepost.messages.session import ConversationAsked, ConversationTold

if TYPE_CHECKING:
    from milepost.actors.session.state import Session


def told(session: Session, asked: ConversationAsked) -> ConversationTold:
    """The newest branch: its messages, unless the asker has its newest reply already."""
    branches = session.record.branches()
    if not branches:
        return ConversationTold(limit=session.refused_by, fault=session.fault)
    newest = branches[-1]
    generation = newest.path[-1]
    return ConversationTold(
        generation=generation,
        num_turns=session.record.num_turns,
        messages=[] if generation == asked.known else list(newest.messages),
        limit=session.refused_by or newest.cut_by,
        fault=session.fault,
    )
