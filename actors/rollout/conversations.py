"""The rollout actor of a supervised run: hands recorded conversations to sessions, in batches.

Every prompt is a whole conversation and becomes a group of one, so there are no agents, attempts
or verdicts: a batch is imported, or imported again under the same names when its session died.

Invariants: RO-1 (balance) and RO-2 (credit) of `core`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.rollout.bookkeeping import Bookkeeping
from milepost.actors.rollout.ledger import group_name
from milepost.actors.rollout.records import Dropped, Issued, Lost, Recalled, Stored
from milepost.messages.buffer import CheckpointSaved, IssueEnded
from milepost.messages.rollout import (
    CreditsGranted,
    GroupDropped,
    GroupsStored,
    GroupStored,
    GroupsTrained,
    LedgerRequested,
    StoreRecovered,
)
from milepost.messages.session import ConversationsImported, ImportConversations
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

if TYPE_CHECKING:
    from milepost.actors.rollout.cursor import PromptOrder
    from milepost.actors.rollout.ledger import Ledger
    from milepost.actors.rollout.settings import RolloutSettings
    from milepost.messages.shared import Message

IMPORTS_PER_SESSION = 2
AGAIN_S = 0.5
REFUSED_MAX = 5


@dataclass(slots=True)
class ConversationRollout:
    """See the module."""

    settings: RolloutSettings
    order: PromptOrder
    book: Bookkeeping
    waits_for: set[str]
    _pending: list[str] = field(default_factory=list)
    """Open groups that no session is importing."""
    _imports: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Key of an open ask -> session, groups."""
    _serial: int = 0
    _draining: Request | None = None
    _refused_in_a_row: int = 0

    @classmethod
    def of(
        cls, settings: RolloutSettings, order: PromptOrder, ledger: Ledger
    ) -> ConversationRollout:
        """A rollout actor that goes on from `ledger`."""
        return cls(settings, order, Bookkeeping(ledger), {"store"})

    def start(self, now_s: float) -> list[Effect]:
        """Nothing is imported before the buffer said what it holds."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects: list[Effect] = []
        match event:
            case Received(source, message, request):
                effects = self._received(source, message, request, now_s)
            case Answered(key, _, message):
                effects = self._answered(key, message, now_s)
            case Unanswered(key):
                effects = self._import_failed(key, now_s)
            case Woken(key):
                self._pending.extend(
                    name for name in key.split("/")[1:] if name in self.book.ledger.open
                )
            case WorkDone():
                effects = self.book.written(event)
            case Taken():
                pass
        effects += self._import()
        return [*self.book.flush(), *effects]

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        book = self.book
        match message:
            case CreditsGranted():
                book.grant(message.samples_total)
            case GroupStored():
                self._stored((message.group_id,))
            case GroupsStored():
                self._stored(message.group_ids)
            case GroupDropped():
                if message.group_id in book.ledger.open or message.group_id in book.ledger.stored:
                    book.record(
                        Dropped(
                            group=message.group_id,
                            reason=message.reason,
                            again=message.retry,
                            consumed=message.consumed,
                        )
                    )
            case GroupsTrained():
                held = book.ledger.stored
                known = tuple(name for name in message.group_ids if name in held)
                book.trained(known, message.version)
            case StoreRecovered():
                return self._store_recovered(message)
            case CheckpointSaved():
                book.checkpointed(message.step)
            case PeerRestarted() | VersionPublished():
                pass
            case LedgerRequested():
                assert request is not None
                return [Reply(request, book.report({}, now_s))]
            case Drain():
                assert request is not None
                self._draining = request
                ended = Tell("buffer", IssueEnded(reason="the rollout actor drains", draining=True))
                return [ended, *book.sync(), Reply(request, Drained(actor="rollout"))]
            case _:
                raise TypeError(f"rollout was told {type(message).__name__} by {source}")
        return []

    def _stored(self, names: tuple[str, ...]) -> None:
        if stored := tuple(name for name in names if name in self.book.ledger.open):
            self.book.record(Stored(groups=stored))

    def _store_recovered(self, message: StoreRecovered) -> list[Effect]:
        self.waits_for.discard("store")
        effects = self.book.adopt(message)
        ledger = self.book.ledger
        for name, step in message.trained.items():
            known = name in ledger.open or name in ledger.stored
            self.book.trained((name,) if known else (), step)
        self._stored(message.stored)
        held = set(message.stored)
        if lost := tuple(name for name in ledger.stored if name not in held):
            self.book.record(Lost(groups=lost))
        self.book.settle(message.groups_spent)
        # Answers to imports under way may speak of rows the old buffer took with it.
        self._imports.clear()
        self._pending.clear()
        if ledger.open:
            self.book.record(Recalled(groups=tuple(ledger.open)))
        return effects

    # ---- importing -----------------------------------------------------------------------

    def _import(self) -> list[Effect]:
        if self.waits_for or self._draining:
            return []
        effects: list[Effect] = []
        while session := self._free_session():
            names = self._take_pending() or self._issue()
            if not names:
                break
            self._serial += 1
            key = f"import/{self._serial}"
            self._imports[key] = (session, names)
            places = self.book.ledger.open
            prompts = tuple(self.order.at(places[name].position) for name in names)
            message = ImportConversations(prompts=prompts, group_ids=names, deliver_to="buffer")
            effects.append(Ask(session, message, key))
        return effects

    def _free_session(self) -> str:
        busy = [session for session, _ in self._imports.values()]
        free = min(self.settings.sessions, key=busy.count, default="")
        return free if free and busy.count(free) < IMPORTS_PER_SESSION else ""

    def _take_pending(self) -> tuple[str, ...]:
        count = self.settings.groups_per_step
        taken, self._pending = self._pending[:count], self._pending[count:]
        return tuple(name for name in taken if name in self.book.ledger.open)

    def _issue(self) -> tuple[str, ...]:
        names: list[str] = []
        while len(names) < self.settings.groups_per_step and self.book.has_credit:
            place = self.book.ledger.next_place()
            name = group_name(place)
            self.book.record(Issued(group=name, position=place.position, retry=place.retry))
            names.append(name)
        return tuple(names)

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        if isinstance(message, ConversationsImported):
            self._imports.pop(key, None)
            self._refused_in_a_row = 0
            return []
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= REFUSED_MAX:
            session, names = self._imports.get(key, ("a session", ()))
            return [Fail(f"{session} refused to import {', '.join(names)}: {message}")]
        return self._import_failed(key, now_s)

    def _import_failed(self, key: str, now_s: float) -> list[Effect]:
        """The same names go out again after a pause; the buffer knows what it has already."""
        _, names = self._imports.pop(key, ("", ()))
        missing = [name for name in names if name in self.book.ledger.open]
        return [Wake("/".join(("again", *missing)), now_s + AGAIN_S)] if missing else []

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert RO-1."""
        self.book.validate()

    def statistics(self) -> dict[str, object]:
        """The ledger and the imports under way."""
        return {**self.book.statistics(), "imports": len(self._imports)}

    def working_on(self) -> str:
        """What it waits for, in names."""
        if self.waits_for:
            return "waits for the buffer to say what it holds"
        if self._imports:
            sessions = ", ".join(sorted({session for session, _ in self._imports.values()}))
            return f"{len(self._imports)} imports of conversations at {sessions}"
        return "waits for the buffer's credit"
