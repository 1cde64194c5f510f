"""What a session remembers of its conversation: messages and tokens, grown one turn at a time.

Two kinds, with one face. A linear record is one row; a tree record (`tree`) is many that share
their beginnings. A request is planned beside the record; only `commit` changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from milepost.actors.session.row import TokenRow
from milepost.actors.session.sampled_calls import SampledCalls, num_calls
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.session.families import Seam
    from milepost.actors.session.history import LinearHistory, Plan
    from milepost.actors.session.reply import SampledReply
    from milepost.actors.session.text.rendering import Piece
    from milepost.messages.shared import ChatMessage


class Turn(Struct, frozen=True, eq=False):
    """One generated turn, ready to be committed."""

    number: int
    """Of the generation in its session, from 1: of two, the later was asked for later."""
    seam: Seam
    piece: Piece
    reply: SampledReply
    message: ChatMessage
    """What the reply says."""
    cut_by: str
    """The run's bound that cut the reply off; empty when it ended by itself, or its client alone
    kept it short."""

    @property
    def is_cut(self) -> bool:
        """Whether any bound cut the reply off: it cannot be continued."""
        return self.reply.finish_reason is FinishReason.LENGTH


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One whole conversation of a record, from its first prompt to a reply that nothing follows."""

    row: TokenRow
    messages: list[ChatMessage]
    tools: list[dict[str, Any]]
    path: tuple[int, ...]
    """Numbers of its turns, in order."""
    ends: tuple[int, ...]
    """For each turn, number of messages up to and with its reply."""
    retried: bool
    """A later generation answers at the place of its last turn."""
    cut_by: str
    """The run's bound that cut its last reply off."""

    @property
    def is_cut(self) -> bool:
        """Whether any bound cut its last reply off, also its client's own."""
        return self.row.turns[-1].finish_reason is FinishReason.LENGTH


class Record(Protocol):
    """See the module. A plan is valid for the record it was made on, until it changes."""

    @property
    def takes_parallel(self) -> bool:
        """Whether several turns may be in flight at once."""
        ...

    @property
    def num_turns(self) -> int:
        """Replies that are kept."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        ...

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of all replies."""
        ...

    @property
    def known(self) -> Sequence[ChatMessage]:
        """Messages that a request probably repeats from its first one on."""
        ...

    @property
    def sampled_calls(self) -> SampledCalls:
        """Of the replies that are kept."""
        ...

    def plan(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]],
        *,
        in_flight: Sequence[Plan] = (),
    ) -> Plan:
        """How this request goes on; nothing changes.

        Args:
            messages: the whole conversation, as the client sees it.
            tools: of the request.
            in_flight: of turns of this session that are not committed.

        Raises:
            TurnRefused: kinds `not_append_only`, `truncated`, `limit`, and `bad_request` for a role
                that the family cannot append.
        """
        ...

    def last_calls(self, plan: Plan) -> list[dict[str, Any]]:
        """Tool calls of the reply that the plan continues."""
        ...

    def last_token(self, plan: Plan) -> int | None:
        """Last token of what the plan continues."""
        ...

    def base_length(self, plan: Plan) -> int:
        """Tokens of what the plan continues."""
        ...

    def prompt(self, plan: Plan, seam: Seam, piece: Piece) -> NDArray[np.int32]:
        """The prompt of the planned turn, int32 [P]."""
        ...

    def commit(self, plan: Plan, turn: Turn) -> int:
        """Make the planned turn part of the record; returns sampled tokens it throws away."""
        ...

    def cut_after(self, number: int) -> None:
        """Forget the turns asked for after this one: the verdict never saw them.

        Nothing can be committed after that.

        Raises:
            ValueError: the turn itself was thrown away, since it was tried again.
        """
        ...

    def keep_received(self, numbers: Collection[int]) -> None:
        """Forget replies that nobody received, unless one of these turns continues them.

        Of turns up to the newest of these; nothing can be committed after that.
        """
        ...

    def branches(self) -> list[Branch]:
        """Every conversation that can be trained; costs their tokens."""
        ...

    def later(self) -> Callable[[], list[Branch]]:
        """Gives what `branches` would give now, also from another thread while the record grows."""
        ...

    def validate(self) -> None:
        """Assert every invariant; costs every token."""
        ...


class LinearRecord:
    """One row: a request appends to it, or tries its newest turn again.

    Args:
        history: of its messages, still empty.
    """

    takes_parallel = False

    def __init__(self, history: LinearHistory) -> None:
        self.history = history
        self.row = TokenRow()
        self.sampled_calls = SampledCalls()
        self._numbers: list[int] = []
        self._cut_by = ""

    @property
    def num_turns(self) -> int:
        """Replies in the row."""
        return len(self.row.turns)

    @property
    def num_tokens(self) -> int:
        """Length of the row."""
        return self.row.length

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of its replies, those included that the row went on without."""
        kept = sum(turn.end - turn.prompt_end for turn in self.row.turns)
        return kept + self.row.num_trimmed

    @property
    def known(self) -> Sequence[ChatMessage]:
        """All of them."""
        return self.history.messages

    def plan(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]],
        *,
        in_flight: Sequence[Plan] = (),
    ) -> Plan:
        """As `LinearHistory.plan`; what is in flight will be superseded."""
        del in_flight
        return self.history.plan(messages, tools)

    def last_calls(self, plan: Plan) -> list[dict[str, Any]]:
        """Tool calls of the last reply that stays."""
        return self.history.last_calls(plan.base_turns)

    def last_token(self, plan: Plan) -> int | None:
        """Last token that stays."""
        return self.row.last_token(plan.base_turns)

    def base_length(self, plan: Plan) -> int:
        """Tokens that stay."""
        return self.row.base_length(plan.base_turns)

    def prompt(self, plan: Plan, seam: Seam, piece: Piece) -> NDArray[np.int32]:
        """What stays, the seam, and the new text."""
        return self.row.prompt(plan.base_turns, seam, piece)

    def commit(self, plan: Plan, turn: Turn) -> int:
        """Extend the row; a retry throws the newest reply away."""
        newest = self.row.turns[-1] if plan.is_retry else None
        if plan.is_retry:
            self.sampled_calls.remove(self.history.messages[self.history.ends[-1] - 1])
        self.sampled_calls.add(turn.message)
        self.row.commit(plan.base_turns, turn.seam, turn.piece, turn.reply)
        self.history.commit(plan, turn.message, truncated=turn.is_cut)
        self._cut_by = turn.cut_by
        del self._numbers[plan.base_turns :]
        self._numbers.append(turn.number)
        return newest.end - newest.prompt_end if newest else 0

    def cut_after(self, number: int) -> None:
        """Shorten the row to the end of this turn."""
        if number not in self._numbers:
            raise ValueError(
                f"the verdict is of reply {number}, whose turn was tried again since: the row "
                f"holds replies {self._numbers}"
            )
        kept = self._numbers.index(number) + 1
        if kept < len(self._numbers):
            self.row.cut_for_good(kept)
            for end in self.history.ends[kept:]:
                self.sampled_calls.remove(self.history.messages[end - 1])
            self.history.cut(kept)
            del self._numbers[kept:]
            # A reply that was cut off cannot be continued, so the one that is now last was not.
            self._cut_by = ""

    def keep_received(self, numbers: Collection[int]) -> None:
        """Nothing: who asked for a later turn has repeated the replies before it."""

    def branches(self) -> list[Branch]:
        """The one there is."""
        if not self.row.turns:
            return []
        history = self.history
        branch = Branch(
            row=self.row,
            messages=history.messages,
            tools=history.tools,
            path=tuple(self._numbers),
            ends=tuple(history.ends),
            retried=False,
            cut_by=self._cut_by,
        )
        return [branch]

    def later(self) -> Callable[[], list[Branch]]:
        """The one there is, copied: 9 bytes a token, and its routes."""
        copies = [
            replace(branch, row=branch.row.copy(), messages=list(branch.messages))
            for branch in self.branches()
        ]
        return lambda: copies

    def validate(self) -> None:
        """Assert what holds between row and messages."""
        self.row.validate()
        self.history.validate()
        assert len(self.row.turns) == len(self.history.ends), "row and history differ in turns"
        replies = [self.history.messages[end - 1] for end in self.history.ends]
        assert len(self.sampled_calls) == num_calls(replies), "calls of another conversation"
        assert self._numbers == sorted(set(self._numbers)), "turns are out of order"
