"""One call of a core as a line of its recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Fail,
    Received,
    Reply,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.hold import Told
from milepost.actors.recorder.content import digest_of_content
from milepost.actors.recorder.describing import facts_of, reader_of
from milepost.actors.recorder.lines import START, Decision, Facts
from milepost.actors.recorder.story import MAY_BE_NEWS
from milepost.messages.shared import Message

NOTHING_SENT: Final = (0, 0)
"""Id and digest of a message that never was."""
EFFECTS_MAX: Final = 256
"""In one line; a core that orders more is not recorded whole, and says so."""


class Order(Struct, frozen=True, gc=False):
    """What a line says of a `Work`: what that holds may be large, or change later."""

    name: str
    key: str

    @classmethod
    def of(cls, work: Work) -> Order:
        """Its name and key."""
        return cls(type(work).__name__, work.key)


class Outcome(Struct, frozen=True, gc=False):
    """What a line says of the result of work, for the same reasons."""

    name: str
    facts: Any


Sending: TypeAlias = tuple[Tell | Ask | Reply, int, int]
"""With id and digest of the message on the bus."""
CarriedOut: TypeAlias = Sending | Wake | Order | Fail
Call: TypeAlias = tuple[Told, float, float, Sequence[CarriedOut], Exception | None]
"""One call of a core before it is a line: what it was told; its time, and that of the day before
anything that followed; what it ordered; what it raised. Nothing in it changes any more."""
RawDecision: TypeAlias = tuple[str, str, str, str, int, Any, int, float | None, bool]
"""Fields of a `Decision`, the facts as values."""
RawLine: TypeAlias = tuple[
    int, float, float, str, str, str, str, int, int, bool, Any, int, str, Sequence[RawDecision]
]
"""Fields of a `Line`, likewise: what a writer makes, without an object for each."""
_NO_FACTS: Final[Facts] = {}


class _Readers(dict[type, tuple[str, Callable[[Any], Any], bool]]):
    """Type of a message -> its name, what reads its values, whether it may be worth a pin."""

    def __missing__(self, kind: type[Message]) -> tuple[str, Callable[[Any], Any], bool]:
        found = self[kind] = kind.__name__, reader_of(kind), kind in MAY_BE_NEWS
        return found


_readers: Final = _Readers()


def lasting(told: Told) -> Told:
    """The same with an `Outcome` for the result of work."""
    event = told.event
    if type(event) is not WorkDone or event.result is None:
        return told
    name, facts = type(event.result).__name__, _NO_FACTS
    if isinstance(event.result, Message):
        facts = _readers[type(event.result)][1](event.result)
    done = WorkDone(event.key, Outcome(name, facts), event.error)
    return Told(done, told.message_id, told.cause, told.digest)


def ordered(effect: Effect) -> CarriedOut:
    """An effect that nothing came of: one before it failed."""
    match effect:
        case Tell() | Ask() | Reply():
            return effect, *NOTHING_SENT
        case Wake() | Fail():
            return effect
        case _:
            return Order.of(effect)


def raw_line(number: int, call: Call, news: list[Message]) -> RawLine:
    """The line of a call whose contents are not kept.

    Args:
        number: of the line.
        call: with an `Outcome` as the result of work.
        news: gets the messages that may be worth a pin.
    """
    told, now_s, at_s, carried_out, failure = call
    event = told.event
    source = name = key = error = ""
    facts: Any = _NO_FACTS
    wants_reply = False
    # By its very type, the most frequent ones first: a `match` asks for each class in turn.
    if type(event) is Received:
        kind, source, wants_reply = "received", event.source, event.request is not None
        name, read, _ = _readers[type(event.message)]
        facts = read(event.message)
    elif type(event) is Answered:
        kind, source, key = "answered", event.source, event.key
        name, read, _ = _readers[type(event.message)]
        facts = read(event.message)
    elif type(event) is WorkDone:
        kind, key, error = "done", event.key, event.error
        if type(event.result) is Outcome:
            name, facts = event.result.name, event.result.facts
    elif type(event) is Taken:
        kind, key = "taken", event.key
    elif type(event) is Woken:
        kind, key = "woken", event.key
    elif isinstance(event, Unanswered):
        kind, source, key, error = "unanswered", event.to, event.key, event.reason
    else:
        assert event is None, type(event)
        kind = START
    if failure is not None:
        error = f"{type(failure).__name__}: {failure}"
    return (
        number,
        at_s,
        now_s,
        kind,
        source,
        name,
        key,
        told.message_id,
        told.cause,
        wants_reply,
        facts,
        told.digest,
        error,
        _raw_decisions(carried_out, news) if carried_out else (),
    )


def _raw_decisions(carried_out: Sequence[CarriedOut], news: list[Message]) -> Sequence[RawDecision]:
    if len(carried_out) > EFFECTS_MAX:
        told = _raw_decisions(carried_out[:EFFECTS_MAX], news)
        return (*told, _more(len(carried_out)))
    decisions: list[RawDecision] = []
    one: RawDecision
    for each in carried_out:
        if isinstance(each, tuple):
            effect, number, digest = each
            message = effect.message
            name, read, may_be_news = _readers[type(message)]
            facts = read(message)
            if type(effect) is Ask:
                at = effect.deadline_s
                one = "ask", effect.to, name, effect.key, number, facts, digest, at, False
            elif type(effect) is Reply:
                to = effect.request.source
                one = "reply", to, name, "", number, facts, digest, None, False
            else:
                assert isinstance(effect, Tell), type(effect)
                if may_be_news:
                    news.append(message)
                at, sure = effect.deadline_s, effect.confirm
                one = "tell", effect.to, name, effect.key, number, facts, digest, at, sure
            decisions.append(one)
        elif type(each) is Wake:
            decisions.append(("wake", "", "", each.key, 0, _NO_FACTS, 0, each.at_s, False))
        elif type(each) is Order:
            decisions.append(("work", "", each.name, each.key, 0, _NO_FACTS, 0, None, False))
        else:
            assert isinstance(each, Fail), type(each)
            decisions.append(("fail", each.reason, "", "", 0, _NO_FACTS, 0, None, False))
    return decisions


def _more(count: int) -> RawDecision:
    told = f"{count - EFFECTS_MAX} further effects are not in this line"
    return ("more", told, "", "", 0, _NO_FACTS, 0, None, False)


def whole_decisions(
    effects: Sequence[Effect], carried_out: Sequence[CarriedOut] = ()
) -> list[Decision]:
    """Decisions of a full recording: with facts by name, and digests of contents.

    Args:
        effects: what the core ordered.
        carried_out: the same with the ids of messages, as far as they came.
    """
    decisions = []
    every = (*carried_out, *map(ordered, effects[len(carried_out) :]))
    for raw, effect in zip(_raw_decisions(every, []), effects, strict=False):
        kind, to, name, key, message_id, _, digest, at, confirm = raw
        facts = _NO_FACTS
        match effect:
            case Tell() | Ask() | Reply():
                facts, digest = facts_of(effect.message), digest_of_content(effect.message)
            case Wake() | Fail():
                pass
            case _:
                digest = digest_of_content(effect)
        decisions.append(Decision(kind, to, name, key, message_id, facts, digest, at, confirm))
    if len(effects) > EFFECTS_MAX:
        decisions[EFFECTS_MAX:] = [Decision(*_more(len(effects)))]
    return decisions
