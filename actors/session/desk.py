"""What all parts of the session core share: text, engines, bounds, counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.effects import Effect, Tell, Wake
from milepost.actors.routes import routes_start
from milepost.actors.session.assembly import RowRules
from milepost.actors.session.generation import RoutesExpected
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.state import Counters, Session
from milepost.actors.session.work import SpareTime, is_small_row, is_small_text
from milepost.messages.buffer import TokensAccounted
from milepost.messages.engine import ForgetSessions

if TYPE_CHECKING:
    from milepost.actors.routes import RoutesShape
    from milepost.actors.session.addresses import Addresses
    from milepost.actors.session.engines import EnginePool
    from milepost.actors.session.reply import SampledReply
    from milepost.actors.session.state import Flight
    from milepost.actors.session.text.rendering import Renderer
    from milepost.actors.session.work import AssembleRows

ACCOUNTS = "accounts"
FORGET_KEY = "forget"
DIGESTS_MAX = 1024
"""No reply lives through as many publications."""
FORGET_S = 0.25
"""Sessions that ended within this time are forgotten by their engine in one message."""


@dataclass(slots=True)
class Desk:
    """One of these belongs to each session core.

    Attributes:
        name: of this session actor.
        renderer: of the run's model.
        pool: the engines.
        context_tokens_max: of the model: prompt and reply together.
        patience_s: how long a turn is tried again while engines fail.
        rules: how branches become rows.
        routes: what routes of the model look like; None when they are not replayed.
        adapters: that the engines of sessions without training have.
        version: newest published version; older ones must not serve any more.
        digests: of the weights of published versions, the newest `DIGESTS_MAX` of them.
        spare_time: of the event loop, for rendering.
        addresses: of sessions, when the HTTP door is open.
    """

    name: str
    renderer: Renderer
    pool: EnginePool
    context_tokens_max: int
    patience_s: float
    rules: RowRules = field(default_factory=RowRules)
    routes: RoutesShape | None = None
    adapters: tuple[str, ...] = ()
    version: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    addresses: Addresses | None = None
    spare_time: SpareTime = field(default_factory=SpareTime)
    counters: Counters = field(default_factory=Counters)
    _serial: int = 0
    _forgotten: dict[str, list[str]] = field(default_factory=dict)
    _accounts_told: dict[str, int] = field(default_factory=dict)
    _accounts_sent: dict[str, dict[str, int]] = field(default_factory=dict)
    """On their way, by key."""

    def published(self, version: int, digest: str) -> None:
        """All engines serve this version."""
        self.version = max(self.version, version)
        if digest:
            self.digests[version] = digest
            if len(self.digests) > DIGESTS_MAX:
                del self.digests[min(self.digests)]

    def routes_wanted(self, session: Session, flight: Flight, base: int) -> RoutesExpected | None:
        """What a turn after `base` tokens adds to the routes of its row; None: none are."""
        if self.routes is None or not session.is_trained:
            return None
        start = routes_start(base - flight.seam.drop)
        return RoutesExpected(self.routes, start, flight.prompt_tokens)

    def check_adapter(self, session: Session, adapter: str) -> None:
        """Refuse a reply that could not be sampled so, or that would pass for the policy's.

        Raises:
            TurnRefused: kinds `unknown_adapter`, and `bad_request` in a session that is trained.
        """
        if not adapter:
            return
        if adapter not in self.adapters:
            has = ", ".join(self.adapters) or "none"
            raise TurnRefused("unknown_adapter", f'no adapter "{adapter}": this run has {has}')
        if session.is_trained:
            raise TurnRefused(
                "bad_request",
                f'a reply under adapter "{adapter}" is not the policy\'s, and this session is '
                "trained: name no adapter here, or evaluate with it",
            )

    def key(self, kind: str) -> str:
        """A key that no other effect of this actor has."""
        self._serial += 1
        return f"{kind}/{self._serial}"

    @property
    def accounts_untold(self) -> dict[str, int]:
        """Where tokens ended since the buffer was told last: they die with this process."""
        told, accounts = self._accounts_told, self.counters.accounts
        fresh = {name: total - told.get(name, 0) for name, total in accounts.items()}
        return {name: count for name, count in fresh.items() if count}

    def tell_accounts(self) -> list[Effect]:
        """Where tokens ended since the last time, for the waste statement of each step."""
        fresh = self.accounts_untold
        self._accounts_told = dict(self.counters.accounts)
        if not fresh:
            return []
        key = self.key(ACCOUNTS)
        self._accounts_sent[key] = fresh
        return [Tell("buffer", TokensAccounted(tokens=fresh), key, confirm=True)]

    def accounts_taken(self, key: str) -> None:
        """The buffer has them."""
        del self._accounts_sent[key]

    def accounts_missed(self, key: str) -> None:
        """It has not: they are told with the next ones."""
        for name, count in self._accounts_sent.pop(key).items():
            self._accounts_told[name] -= count

    def renders_now(self, text: bytes, now_s: float) -> bool:
        """Whether this is to be rendered on the event loop: it is short, or that has time to spare.

        Otherwise it is worth a thread.
        """
        size = len(text)
        return self._is_now(is_small_text(size) or self.spare_time.take(size, now_s))

    def reads_now(self, reply: SampledReply) -> bool:
        """Whether this is short enough to be read on the event loop."""
        return self._is_now(is_small_row(len(reply.token_ids)))

    def try_inline(self, work: AssembleRows) -> object | None:
        """The result of small work, done at once; None when it is worth a thread."""
        return work.carry_out(self.renderer) if self._is_now(work.is_small()) else None

    def _is_now(self, answer: bool) -> bool:  # noqa: FBT001
        if answer:
            self.counters.works_inline += 1
        else:
            self.counters.works_threaded += 1
        return answer

    def enter_engine(self, session: Session, now_s: float, avoid: str = "") -> None:
        """Choose the engine that this session goes to from now on, and its rank there."""
        spec = session.spec
        place = self.pool.place(spec.trajectory_id, now_s, avoid, spec.purpose)
        session.engine, session.rank = place

    def leave_engine(self, session: Session, now_s: float) -> list[Effect]:
        """The session is over: its engine may drop its prefix."""
        if not session.engine:
            return []
        self.pool.release(session.engine)
        names = self._forgotten.setdefault(session.engine, [])
        names.append(session.spec.trajectory_id)
        session.engine = ""
        first = sum(map(len, self._forgotten.values())) == 1
        return [Wake(FORGET_KEY, now_s + FORGET_S)] if first else []

    def forget(self) -> list[Effect]:
        """Tell the engines which sessions ended."""
        forgotten, self._forgotten = self._forgotten, {}
        return [
            Tell(engine, ForgetSessions(session_ids=tuple(names)))
            for engine, names in forgotten.items()
        ]

    def count_mismatches(self, kinds: tuple[str, ...]) -> None:
        """Keep the books of the canonical comparison."""
        counts = self.counters.mismatches
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
