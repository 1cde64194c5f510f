"""The token row of one conversation: ids, log-probs and provenance, growing turn by turn.

Arrays with spare room, never a Python object for each token: 9 bytes a token and its routes, where
they are replayed, at most doubled. The row is hashed as it grows, and a prompt is a view of it that
reaches into the spare room, so a turn costs its new tokens only. A token that was given out in a
prompt is never written again: somebody may still be sending it, or reading it. Where another one
must stand, the tokens before it are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash
from msgspec.structs import replace

from milepost.actors.routes import routes_start
from milepost.actors.session.reply import ReplyEnd
from milepost.messages.shared import VersionSpan
from milepost.messages.trajectory import Provenance, TurnBoundary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from milepost.actors.session.families import Seam
    from milepost.actors.session.reply import SampledReply
    from milepost.actors.session.text.rendering import Piece

FIRST_CAPACITY: Final = 128
_TEMPLATE: Final = int(Provenance.TEMPLATE)
_SAMPLED: Final = int(Provenance.SAMPLED)


class TokenRow:
    """One conversation's tokens, T in all.

    Only `commit` changes it. A prompt is made behind its end, so a turn that fails leaves no trace.
    """

    __slots__ = (
        "_before_reply",
        "_before_turn",
        "_ends",
        "_given",
        "_hasher",
        "_laid",
        "_logprobs",
        "_provenance",
        "_routes",
        "_token_ids",
        "length",
        "spans",
        "turns",
    )

    def __init__(self) -> None:
        self.length = 0
        self.turns: list[TurnBoundary] = []
        self.spans: list[VersionSpan] = []
        self._token_ids = np.empty(FIRST_CAPACITY, dtype="<i4")
        self._given = 0
        """The first tokens in this memory are in prompts, so many of them."""
        self._laid: tuple[int, Seam, Piece] | None = None
        """The newest prompt text that stands in this memory, and from where on."""
        self._provenance = np.empty(FIRST_CAPACITY, dtype=np.uint8)
        self._logprobs = np.empty(FIRST_CAPACITY, dtype="<f4")
        self._routes: NDArray[np.uint8 | np.int16] | None = None
        self._hasher = xxhash.xxh3_128()
        """Over [0, length)."""
        self._before_turn = self._hasher.copy()
        """Over what stood before the newest turn: where a retry starts."""
        self._before_reply = self._hasher.copy()
        """Over the newest turn's prompt: where a trimmed reply is hashed again from."""
        self._ends: dict[int, ReplyEnd] = {}
        """By the index of their turns, none of which is the newest."""

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """int32 [T], a view."""
        return self._token_ids[: self.length]

    @property
    def provenance(self) -> NDArray[np.uint8]:
        """uint8 [T] of `Provenance`, a view."""
        return self._provenance[: self.length]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """float32 [T], 0 where a token was not sampled, a view."""
        return self._logprobs[: self.length]

    @property
    def routes(self) -> NDArray[np.uint8 | np.int16] | None:
        """[T - 1, layers, experts per token], a view; None when routes are not replayed."""
        return None if self._routes is None else self._routes[: max(0, self.length - 1)]

    @property
    def num_trimmed(self) -> int:
        """Sampled tokens that the row went on without."""
        return sum(len(end.token_ids) for end in self._ends.values())

    def base_length(self, base_turns: int) -> int:
        """Tokens of the first `base_turns` turns, the end of the last reply included."""
        assert 0 <= base_turns <= len(self.turns), f"{base_turns} of {len(self.turns)} turns"
        if not base_turns:
            return 0
        end = self._ends.get(base_turns - 1)
        return end.turn.end if end else self.turns[base_turns - 1].end

    def last_token(self, base_turns: int) -> int | None:
        """Last token of the first `base_turns` turns."""
        if (end := self._ends.get(base_turns - 1)) is not None:
            return int(end.token_ids[-1])
        length = self.base_length(base_turns)
        return int(self._token_ids[length - 1]) if length else None

    def prompt(self, base_turns: int, seam: Seam, piece: Piece) -> NDArray[np.int32]:
        """The prompt of a turn after the first `base_turns`, int32 [P]; the row stays as it is.

        A view of memory that keeps what it says for as long as somebody refers to it; a copy where
        it leaves out tokens that the row still has.
        """
        self._check_seam(base_turns, seam)
        base = self.base_length(base_turns) - seam.drop
        start = base + len(seam.insert)
        end = start + len(piece.token_ids)
        if base < self.length:
            prompt = np.empty(end, dtype="<i4")
            prompt[:base] = self._token_ids[:base]
            prompt[base:start] = seam.insert
            prompt[start:] = piece.token_ids
            return prompt
        if end > len(self._token_ids):
            self._grow(end)
        self._lay(base, seam, piece)
        self._given = max(self._given, end)
        prompt = self._token_ids[:end]
        prompt.flags.writeable = False
        return prompt

    def commit(self, base_turns: int, seam: Seam, piece: Piece, reply: SampledReply) -> None:
        """Make the first `base_turns` turns, the new prompt text and the reply the row.

        Args:
            base_turns: all turns, or all but the newest (a retry of it).
            seam: repair between the base and `piece`.
            piece: the new prompt text.
            reply: what was sampled after it.
        """
        discarded = len(self.turns) - base_turns
        assert 0 <= discarded <= 1, f"a commit discards {discarded} turns, 1 is the most"
        self._check_seam(base_turns, seam)
        if discarded:
            self._cut(base_turns)
        elif seam.drop:
            self._trim(seam.drop)
        known = routes_start(self.length)
        prompt_end = self._append(seam, piece, reply)
        if reply.routes is not None:
            self._add_routes(known, reply.routes)
        self._add_spans(prompt_end, reply.spans)
        self.turns.append(
            TurnBoundary(
                prompt_end=prompt_end,
                end=self.length,
                finish_reason=reply.finish_reason,
                prefix_hash=self._hasher.hexdigest(),
                engine=reply.engine,
                incarnation=reply.incarnation,
                adapter=reply.adapter,
                cached_tokens=reply.cached_tokens,
                weights=reply.weights,
            )
        )

    def copy(self) -> TokenRow:
        """The same row, to be read: what is appended to this one does not reach it."""
        twin = TokenRow()
        twin.length = self.length
        twin.turns, twin.spans = list(self.turns), list(self.spans)
        twin._token_ids = self.token_ids.copy()
        twin._provenance = self.provenance.copy()
        twin._logprobs = self.logprobs.copy()
        twin._routes = None if self.routes is None else self.routes.copy()
        twin._hasher = self._hasher.copy()
        twin._ends = dict(self._ends)
        return twin

    def cut_for_good(self, turns: int) -> None:
        """Forget all but the first `turns` turns; nothing can be committed after that."""
        ends = self._ends
        self._ends = {index: ends[index] for index in ends if index < turns - 1}
        del self.turns[turns:]
        self._shorten(self.turns[-1].end if turns else 0)
        if (end := ends.get(turns - 1)) is not None:
            self._restore(end)

    def validate(self) -> None:
        """Every invariant, from scratch; costs the whole row."""
        laid = np.empty(0, dtype=np.int32)
        base = 0
        if self._laid is not None:
            base, seam, piece = self._laid
            laid = np.concatenate([np.array(seam.insert, dtype=np.int32), piece.token_ids])
        text_end = base + len(laid)
        assert (self._token_ids[base:text_end] == laid).all(), "other text stands where it was laid"
        assert self._given <= text_end, "a prompt reaches beyond the newest text that was laid"
        hasher, start = xxhash.xxh3_128(), 0
        sampled = self.provenance == Provenance.SAMPLED
        expected = np.zeros(self.length, dtype=bool)
        for index, turn in enumerate(self.turns):
            assert start <= turn.prompt_end <= turn.end <= self.length, f"turn {turn} is misplaced"
            assert turn.prompt_end < turn.end or index in self._ends, f"turn {turn} was never there"
            hasher.update(self._token_ids[start : turn.end].data)
            assert hasher.hexdigest() == turn.prefix_hash, f"hash of turn {turn} is wrong"
            expected[turn.prompt_end : turn.end] = True
            start = turn.end
        assert start == self.length, f"row ends at {self.length}, its last turn at {start}"
        assert all(0 <= at < len(self.turns) - 1 for at in self._ends), (
            "the last reply lost its end"
        )
        assert (sampled == expected).all(), "sampled tokens and turns differ"
        assert not self.logprobs[~sampled].any(), "a token that was not sampled has a log-prob"
        covered = np.zeros(self.length, dtype=np.int64)
        for span in self.spans:
            covered[span.start : span.end] += 1
        assert (covered == expected).all(), "version spans do not cover the sampled tokens once"
        assert self.routes is None or len(self.routes) == max(0, self.length - 1), (
            f"routes of {len(self.routes)} tokens in a row of {self.length}"
        )

    def _append(self, seam: Seam, piece: Piece, reply: SampledReply) -> int:
        """One turn at the end of the row; returns where its reply begins."""
        start = self.length
        text = start + len(seam.insert)
        prompt_end = text + len(piece.token_ids)
        end = prompt_end + len(reply.token_ids)
        if end > len(self._token_ids):
            self._grow(end)
        self._lay(start, seam, piece)
        token_ids, kinds, logprobs = self._token_ids, self._provenance, self._logprobs
        token_ids[prompt_end:end] = reply.token_ids
        kinds[start:text] = _TEMPLATE
        kinds[text:prompt_end] = piece.provenance
        kinds[prompt_end:end] = _SAMPLED
        logprobs[start:prompt_end] = 0.0
        logprobs[prompt_end:end] = reply.logprobs
        hasher = self._hasher
        self._before_turn = hasher.copy()
        hasher.update(token_ids[start:prompt_end].data)
        self._before_reply = hasher.copy()
        hasher.update(token_ids[prompt_end:end].data)
        self.length = end
        return prompt_end

    def _lay(self, base: int, seam: Seam, piece: Piece) -> None:
        """Write prompt text after the first `base` tokens, unless it stands there.

        No prompt that was given out of this memory reaches beyond the text that was laid last.
        """
        laid = self._laid
        if laid is not None and laid[0] == base and laid[2] is piece and laid[1] == seam:
            return
        if base < self._given:
            # What somebody was given stays as it is, in memory that is theirs alone from now on.
            fresh = np.empty_like(self._token_ids)
            fresh[:base] = self._token_ids[:base]
            self._token_ids, self._given = fresh, 0
        start = base + len(seam.insert)
        if seam.insert:
            self._token_ids[base:start] = seam.insert
        self._token_ids[start : start + len(piece.token_ids)] = piece.token_ids
        self._laid = base, seam, piece

    def _add_routes(self, known: int, routes: NDArray[np.uint8 | np.int16]) -> None:
        """Routes of the tokens from `known` on; those before have theirs."""
        end = self.length - 1
        assert known + len(routes) == end, f"routes of [{known}, +{len(routes)}), [.., {end}) lack"
        if self._routes is None or len(self._routes) < end:
            grown = np.empty((len(self._token_ids), *routes.shape[1:]), dtype=routes.dtype)
            if self._routes is not None:
                grown[:known] = self._routes[:known]
            self._routes = grown
        self._routes[known:end] = routes

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * len(self._token_ids))
        for name in ("_token_ids", "_provenance", "_logprobs"):
            old = getattr(self, name)
            new = np.empty(capacity, dtype=old.dtype)
            new[: self.length] = old[: self.length]
            setattr(self, name, new)
        self._given, self._laid = 0, None

    def _check_seam(self, base_turns: int, seam: Seam) -> None:
        """The row went on without this end of the reply once, and can only do so again."""
        if (end := self._ends.get(base_turns - 1)) is not None:
            trimmed = len(end.token_ids)
            assert seam.drop == trimmed, f"{seam.drop} tokens of a reply go, {trimmed} went before"

    def _cut(self, base_turns: int) -> None:
        """Forget the newest turn; another takes its place, so the reply before stays trimmed."""
        del self.turns[base_turns:]
        self._hasher = self._before_turn.copy()
        self._shorten(self.turns[-1].end if base_turns else 0)

    def _trim(self, num_tokens: int) -> None:
        """Take a stop token that opens the next message off the newest reply, perhaps all of it."""
        turn = self.turns.pop()
        end = turn.end - num_tokens
        assert end >= turn.prompt_end, f"trimming {num_tokens} tokens of {turn}, which has fewer"
        known = routes_start(end)
        self._ends[len(self.turns)] = ReplyEnd(
            turn=turn,
            token_ids=self._token_ids[end : turn.end].copy(),
            logprobs=self._logprobs[end : turn.end].copy(),
            spans=tuple(span for span in self.spans if span.end > end),
            routes=None if self.routes is None else self.routes[known:].copy(),
        )
        self._shorten(end)
        self._hasher = self._before_reply.copy()
        self._hasher.update(self._token_ids[turn.prompt_end : end].data)
        # A version may have sampled what is trimmed, and nothing else of the reply.
        versions = {span.version for span in self.spans if span.end > turn.prompt_end}
        weights = tuple(used for used in turn.weights if used.version in versions)
        digest = self._hasher.hexdigest()
        self.turns.append(replace(turn, end=end, prefix_hash=digest, weights=weights))

    def _restore(self, end: ReplyEnd) -> None:
        """Give the last reply back the end that the row went on without."""
        start, self.length = self.length, end.turn.end
        known = routes_start(start)
        # Somebody may still read the prompt that was given out from there on.
        self._token_ids = np.concatenate([self._token_ids[:start], end.token_ids])
        self._given, self._laid = 0, None
        self._logprobs[start : self.length] = end.logprobs
        self._provenance[start : self.length] = _SAMPLED
        if self._routes is not None and end.routes is not None:
            self._routes[known : self.length - 1] = end.routes
        while self.spans and self.spans[-1].end > end.spans[0].start:
            self.spans.pop()
        self.spans += end.spans
        self.turns[-1] = end.turn

    def _shorten(self, length: int) -> None:
        self.length = length
        while self.spans and self.spans[-1].end > length:
            span = self.spans.pop()
            if span.start < length:
                self.spans.append(VersionSpan(start=span.start, end=length, version=span.version))

    def _add_spans(self, offset: int, spans: Iterable[VersionSpan]) -> None:
        for span in spans:
            start, end = offset + span.start, offset + span.end
            last = self.spans[-1] if self.spans else None
            if last is not None and last.end == start and last.version == span.version:
                start = self.spans.pop().start
            self.spans.append(VersionSpan(start=start, end=end, version=span.version))
