"""Recorded conversations, rendered as rows and delivered in one message for each batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from milepost.actors.effects import Effect, Reply, Request, Tell
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.validation import check_messages, check_tools
from milepost.actors.session.work import ImportRows, Refusal
from milepost.messages.buffer import TrajectoriesFinished
from milepost.messages.session import (
    ConversationsImported,
    ConversationsRefused,
    ImportConversations,
)

if TYPE_CHECKING:
    from milepost.actors.session.desk import Desk


@dataclass(slots=True)
class Imports:
    """All batches under way at one session actor."""

    desk: Desk
    _works: dict[str, tuple[ImportConversations, Request]] = field(default_factory=dict)
    _deliveries: dict[str, tuple[int, int, Request]] = field(default_factory=dict)
    """By key: rows, their tokens, who asked."""

    def __len__(self) -> int:
        """Batches under way."""
        return len(self._works) + len(self._deliveries)

    def asked(self, order: ImportConversations, request: Request) -> list[Effect]:
        """Render a batch."""
        if len(order.prompts) != len(order.group_ids):
            told = f"{len(order.prompts)} prompts for {len(order.group_ids)} group ids"
            return [Reply(request, ConversationsRefused(reason=told))]
        checked = []
        try:
            for prompt in order.prompts:
                checked.append(replace(prompt, messages=check_messages(prompt.messages)))
                check_tools(prompt.tools)
        except TurnRefused as refused:
            reason = f"prompt {prompt.prompt_id}: {refused}"
            return [Reply(request, ConversationsRefused(reason=reason))]
        desk, order = self.desk, replace(order, prompts=tuple(checked))
        work = ImportRows(
            desk.key("import"), order, desk.context_tokens_max, desk.rules.writes_conversations
        )
        self._works[work.key] = order, request
        return [work]

    def worked(self, key: str, result: object, error: str) -> list[Effect]:
        """The rows are made."""
        order, request = self._works.pop(key)
        if isinstance(result, Refusal):
            error = result.reason
        if error:
            return [Reply(request, ConversationsRefused(reason=error))]
        assert isinstance(result, tuple)
        num_tokens = sum(row.token_ids.shape[0] for row in result)
        key = self.desk.key("rows")
        self._deliveries[key] = len(result), num_tokens, request
        message = TrajectoriesFinished(trajectories=result)
        return [Tell(order.deliver_to, message, key, confirm=True)]

    def taken(self, key: str) -> list[Effect]:
        """The destination has them."""
        rows, num_tokens, request = self._deliveries.pop(key)
        self.desk.counters.conversations_imported += rows
        return [Reply(request, ConversationsImported(num_tokens=num_tokens))]

    def undelivered(self, key: str, to: str, reason: str) -> list[Effect]:
        """The destination did not take them; who asked may ask again."""
        _, _, request = self._deliveries.pop(key)
        return [Reply(request, ConversationsRefused(reason=f"{to} did not take them: {reason}"))]
