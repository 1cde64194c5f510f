"""The monitor in a pipe: one line says everything, nothing is said twice; and the one object."""

from __future__ import annotations

import msgspec
from unit.monitor.kit import event, going_on, heard, told

from milepost.launch.monitor.facts import facts_of
from milepost.launch.monitor.plain import PlainLines, status_line
from milepost.launch.monitor.updates import Ended, Recorded, Silent


def test_one_line_has_the_figures_that_matter() -> None:
    line = status_line(going_on())
    for word in (
        "running 1:03",
        "step 3/80",
        "success 0.30",
        "reward 0.40",
        "C1 ok  C2 not measured  C3 ok  C4 ok",
        "balanced",
        "wasted 1.",
    ):
        assert word in line, word
    assert "\n" not in line


def test_a_run_that_has_said_nothing_has_a_line_too() -> None:
    assert "attaching" in status_line(told())
    assert "C1 not measured" in status_line(told())
    assert "C2 not needed" in status_line(told(routes="dense"))


def test_an_event_is_told_once_and_old_ones_only_a_few() -> None:
    old = tuple(event("late", f"number {number}") for number in range(50))
    model = told(Recorded(events=old))
    lines = PlainLines(model)
    first = list(lines.news())
    assert len(first) == 10
    assert first[-1].endswith("supervisor late: number 49")
    assert list(lines.news()) == []
    model.take(Recorded(events=(event("failed", "\x1b[2Jgone\nreally"),)))
    (line,) = lines.news()
    assert line.endswith("supervisor failed:  [2Jgone really")


def test_a_silence_is_told_once_and_the_bottleneck_when_it_changes() -> None:
    model = going_on()
    lines = PlainLines(model)
    assert len(list(lines.picture())) == 2
    assert len(list(lines.picture())) == 1
    list(lines.news())
    model.take(Silent(reason="nothing for 6 s"))
    assert [line.partition("  ")[2] for line in lines.news()] == ["nothing for 6 s"]
    model.take(Silent(reason="nothing for 6 s"))
    assert list(lines.news()) == []


def test_the_last_lines_say_how_it_ended() -> None:
    model = going_on()
    model.take(Ended(summary={"status": "stopped", "steps_done": 3, "seconds": {"total": 9.0}}))
    lines = list(PlainLines(model).ending())
    assert lines[-1].endswith("the run has ended: stopped after 3 steps")


def test_the_object_has_everything_and_is_json() -> None:
    model = going_on()
    model.take(heard(4))
    facts = msgspec.json.decode(msgspec.json.encode(facts_of(model)))
    assert facts["run"]["phase"] == "running"
    assert [lamp["name"] for lamp in facts["contracts"]] == ["C1", "C2", "C3", "C4"]
    assert facts["account"]["balance"] == 0
    assert facts["curves"]["success"]["points"] == [0.1, 0.2, 0.30000000000000004]
    assert {row["name"] for row in facts["actors"]} >= {"trainer-0", "supervisor"}
    assert facts["versions"]["engine-0"]
    assert facts_of(told())["account"] is None
