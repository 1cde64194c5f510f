"""Work on text: rendering, reading replies, assembling, importing.

Each is a plain function of its order, done where it is cheapest: a thread costs about 100 us to
reach and back, so what takes less than about 200 us is done at once on the event loop. Measured on
one core with a tokenizer of 151,669 entries: tokenizing 0.4 us a character, reading a reply 0.4 us
a token, comparing a finished row 0.4 us a token and 40 us a message. Hence the bounds below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from milepost.actors.effects import Work
from milepost.actors.session.assembly import RowMaker, import_conversation
from milepost.actors.session.leaves import LeafFault
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from milepost.actors.session.assembly import RowRules
    from milepost.actors.session.families import ParsedReply
    from milepost.actors.session.record import Record
    from milepost.actors.session.reply import SampledReply
    from milepost.actors.session.text.rendering import Piece, Renderer
    from milepost.messages.session import FinishTrajectory, ImportConversations, SessionSpec
    from milepost.messages.trajectory import Trajectory

INLINE_BYTES_MAX: Final = 512
INLINE_TOKENS_MAX: Final = 512
SPARE_BYTES_MAX: Final = 2048
"""Up to here (`LONG_CHARS`) a thread would hold the interpreter as long as the event loop does: it
is no gain but for the fairness of many."""
SPARE_BYTES_PER_S: Final = 250_000
"""Text that is done on the event loop all the same: about a tenth of its time."""
SPARE_BYTES_AT_ONCE: Final = 8192


def is_small_text(num_bytes: int) -> bool:
    """Worth no thread to be rendered."""
    return num_bytes <= INLINE_BYTES_MAX


def is_small_row(num_tokens: int) -> bool:
    """Worth no thread to be read or compared."""
    return num_tokens <= INLINE_TOKENS_MAX


@dataclass(slots=True)
class SpareTime:
    """How much middling text the event loop may still do at once: what it did not do, it saves."""

    left: float = SPARE_BYTES_AT_ONCE
    at_s: float = 0.0

    def take(self, num_bytes: int, now_s: float) -> bool:
        """Whether so much text may be done now."""
        if num_bytes > SPARE_BYTES_MAX:
            return False
        saved = self.left + (now_s - self.at_s) * SPARE_BYTES_PER_S
        self.left, self.at_s = min(saved, SPARE_BYTES_AT_ONCE), now_s
        if num_bytes > self.left:
            return False
        self.left -= num_bytes
        return True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The text itself is at fault; the reason is for whoever sent it."""

    reason: str


@dataclass(frozen=True, slots=True)
class RenderText(Work):
    """Tokens of a text that `Renderer.first` or `Renderer.delta` named."""

    text: bytes

    def carry_out(self, renderer: Renderer) -> Piece | Refusal:
        """Render it."""
        return render(self.text, renderer)


def render(text: bytes, renderer: Renderer) -> Piece | Refusal:
    """As `Renderer.render`; what the template refuses is an answer, too."""
    try:
        return renderer.render(text)
    except RenderFailed as error:
        return Refusal(str(error))


@dataclass(frozen=True, slots=True)
class ReadReply(Work):
    """The message that a sampled reply says."""

    reply: SampledReply
    prompt_tail: str
    turn: int
    tools: list[dict[str, Any]]

    def carry_out(self, renderer: Renderer) -> ParsedReply:
        """Read it."""
        return read_reply(self.reply, self.prompt_tail, self.turn, self.tools, renderer)


def read_reply(
    reply: SampledReply,
    prompt_tail: str,
    turn: int,
    tools: list[dict[str, Any]],
    renderer: Renderer,
) -> ParsedReply:
    """Decode and parse a reply; its stop token is no part of the text."""
    token_ids = reply.token_ids.tolist()
    if reply.finish_reason is FinishReason.STOP:
        del token_ids[-1]
    text = renderer.tokenizer.decode(token_ids)
    return renderer.family.reply_parser(prompt_tail, turn=turn, tools=tools).read(text)


@dataclass(frozen=True, slots=True)
class AssembleRows(Work):
    """The trajectory of a session that has ended; nothing of its record changes any more."""

    spec: SessionSpec
    record: Record
    verdict: FinishTrajectory
    limit: str
    """The bound that refused its last turn; empty: none."""
    bounds: dict[int, str]
    """See `Session`."""
    metadata: dict[str, Any]
    rules: RowRules

    def is_small(self) -> bool:
        """Worth no thread."""
        return is_small_row(self.record.num_tokens) and not self.rules.has_foreign_hooks

    def carry_out(self, renderer: Renderer) -> tuple[Trajectory, ...] | Refusal:
        """Pick its branches, compare each with a canonical rendering, certify it."""
        maker = RowMaker(self.spec, self.verdict, renderer, self.limit, self.bounds, self.metadata)
        try:
            return maker.rows(self.record.branches(), self.rules)
        except LeafFault as fault:
            return Refusal(str(fault))


@dataclass(frozen=True, slots=True)
class ImportRows(Work):
    """Rows of recorded conversations."""

    order: ImportConversations
    tokens_max: int
    writes_conversations: bool = False

    def carry_out(self, renderer: Renderer) -> tuple[Trajectory, ...] | Refusal:
        """All of them, or the first that cannot be."""
        rows = []
        for prompt, group_id in zip(self.order.prompts, self.order.group_ids, strict=True):
            try:
                row = import_conversation(
                    prompt, group_id, renderer, writes_conversation=self.writes_conversations
                )
            except RenderFailed as error:
                return Refusal(f"prompt {prompt.prompt_id}: {error}")
            num_tokens = row.token_ids.shape[0]
            if num_tokens > self.tokens_max:
                return Refusal(
                    f"prompt {prompt.prompt_id} has {num_tokens} tokens, the model takes "
                    f"{self.tokens_max}; shorten it or raise model.context_tokens_max"
                )
            rows.append(row)
        return tuple(rows)


TextWork = RenderText | ReadReply | AssembleRows | ImportRows
