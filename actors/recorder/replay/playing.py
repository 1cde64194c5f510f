"""Plays a tape into a core and compares each decision with the recorded one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from milepost.actors.effects import Core, Effect, Event, WorkDone
from milepost.actors.recorder.calls import whole_decisions
from milepost.actors.recorder.lines import Decision, Line, clock, decision_words, event_words
from milepost.actors.recorder.replay.tape import Tape

Watch = Callable[[Line, Event | None, Sequence[Effect]], None]
"""Sees each line, the event, and what the core answered now."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the core decided otherwise.

    Attributes:
        line: as recorded.
        index: of the decision in it.
        recorded: None: there was none more.
        replayed: None: there is none more.
    """

    line: Line
    index: int
    recorded: Decision | None
    replayed: Decision | None

    def words(self) -> Iterator[str]:
        """For people."""
        yield f"line {self.line.number} at {clock(self.line.wall_s)}: {event_words(self.line)}"
        yield f"  recorded {_told(self.recorded)}"
        yield f"  replayed {_told(self.replayed)}"
        if self.recorded is not None and self.replayed is not None:
            names = ", ".join(_fields(self.recorded, self.replayed))
            yield f"  they differ in {names} (decision {self.index + 1} of the line)"


@dataclass(frozen=True, slots=True)
class Played:
    """How it went: `num_lines` were the same, then came the difference, if any."""

    num_lines: int
    num_decisions: int
    difference: Difference | None


def play(tape: Tape, core: Core, watch: Watch | None = None) -> Played:
    """Tell the core all that is on the tape, at the recorded times.

    Raises:
        ReplayRefused: the content of a line is not there.
    """
    num_decisions = 0
    for count, line in enumerate(tape.lines):
        event = tape.event(line)
        effects: list[Effect] = []
        try:
            effects = core.start(line.now_s) if event is None else core.handle(event, line.now_s)
            raised = ""
        except Exception as error:  # noqa: BLE001 - a core that raised then must raise the same now
            raised = f"{type(error).__name__}: {error}"
        if watch is not None:
            watch(line, event, effects)
        now = whole_decisions(effects)
        difference = compare(line, now) or _compare_failure(line, event, raised)
        if difference is not None:
            return Played(count, num_decisions, difference)
        num_decisions += len(now)
    return Played(len(tape.lines), num_decisions, None)


def compare(line: Line, replayed: Iterable[Decision]) -> Difference | None:
    """The first decision that is not the recorded one; ids of messages do not count."""
    for index, (then, now) in enumerate(zip_longest(line.decisions, replayed)):
        if then is None or now is None or any(_fields(then, now)):
            return Difference(line, index, then, now)
    return None


def _compare_failure(line: Line, event: Event | None, raised: str) -> Difference | None:
    """A core that raised must raise the same; `Fail` is an effect, which the shell raises."""
    told = "" if line.kind == "unanswered" or isinstance(event, WorkDone) else line.error
    ordered = any(each.kind == "fail" for each in line.decisions)
    if raised == told or (not raised and ordered):
        return None
    then = Decision("fail", told) if told else None
    return Difference(line, 0, then, Decision("fail", raised) if raised else None)


def _fields(one: Decision, other: Decision) -> Iterator[str]:
    for name in one.__struct_fields__:
        if name != "message_id" and _plain(getattr(one, name)) != _plain(getattr(other, name)):
            yield "content" if name == "digest" else name


def _plain(value: object) -> object:
    """Facts as they are once written: a tuple is a list then."""
    return msgspec.to_builtins(value)


def _told(decision: Decision | None) -> str:
    return "nothing more" if decision is None else decision_words(decision)
