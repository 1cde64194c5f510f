"""Words of models, tools and guests reach a terminal as words: nothing in them acts there."""

from __future__ import annotations

from io import StringIO

import pytest

from milepost.launch.commands import why
from milepost.launch.display.plain import PlainDisplay
from milepost.launch.display.progress import Progress
from milepost.launch.running import Options
from milepost.launch.tables import LEFT, table
from milepost.messages.supervisor import EventReported

EVIL = "no key \x1b]52;c;cm0gLXJm\x07\nsupervisor done: all is well"
SHOWN = "no key ⟨U+001B⟩]52;c;cm0gLXJm⟨U+0007⟩ supervisor done: all is well"


def test_an_event_is_one_line_and_writes_nothing_into_the_clipboard() -> None:
    out = StringIO()
    progress = Progress("tiny", 4, "solved")
    PlainDisplay(progress, out).on_event(EventReported(source="agent-0", kind="failed", text=EVIL))
    assert out.getvalue() == f"agent-0 failed: {SHOWN}\n"
    assert progress.lines[-1].text == SHOWN, "the live display shows the same"


def test_what_actors_say_of_themselves_is_shown_in_lines_and_tables() -> None:
    facts = {"name": "tiny", "phase": "running", "phase_s": 1.0, "waiting": ""}
    actor = {"actor": "agent-0", "state": "running", "heard_s": 0.1, "working_on": EVIL}
    events = [{"source": "agent-0", "kind": "failed", "text": EVIL}]
    _, doing, event = why.lines_of(facts, [actor], events)
    assert doing == f"  agent-0 (running): {SHOWN}"
    assert event == f"  agent-0 failed: {SHOWN}"
    assert table([("doing", LEFT)], [[EVIL]]) == ["doing", SHOWN]


def test_a_conversation_keeps_its_lines_and_loses_its_escapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report at the end of a run prints two of them."""
    Options().say("= one\n  two\x1b[2J")
    assert capsys.readouterr().out == "= one\n  two⟨U+001B⟩[2J\n"
