"""The checks as a person or a program reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from milepost.configs.problem import Problem
from milepost.supervisor.checks import CHECKS, Checked


def lines_of(checked: Checked) -> Iterator[str]:
    """One line for a check that holds; below it, what was found."""
    if checked.skipped:
        yield f" -     {checked.check.sentence}"
        return
    yield f" {'FAIL' if checked.problems else 'ok  '}  {checked.check.sentence}"
    for problem in checked.problems:
        yield f"       {problem.where}: {problem.what}"
        if problem.remedy:
            yield f"       {problem.remedy}"
    yield from note_lines(checked)


def note_lines(checked: Checked) -> Iterator[str]:
    """What a person should know although nothing is wrong."""
    for note in checked.notes:
        yield f" info  {note}"


def last_line(results: Sequence[Checked]) -> str:
    """How many hold, and what follows."""
    count = sum(len(checked.problems) for checked in results)
    if not count:
        return f"{len(results)} checks, no problem"
    skipped = sum(checked.skipped for checked in results)
    rest = f", {skipped} checks not tried" if skipped else ""
    return f"{count} problem{'s' if count > 1 else ''}{rest}, nothing was started (exit 2)"


def unread(problems: Sequence[Problem]) -> tuple[Checked, ...]:
    """The results for a topology that could not even be read."""
    return (
        Checked(CHECKS[0], tuple(problems)),
        *(Checked(check, skipped=True) for check in CHECKS[1:]),
    )


def as_json(results: Sequence[Checked]) -> str:
    """One object: `ok`, and `checks` with sentence, stage, state, problems and notes of each."""
    document: dict[str, Any] = {
        "ok": not any(checked.problems for checked in results),
        "checks": [
            {
                "sentence": checked.check.sentence,
                "stage": checked.check.stage.name.lower(),
                "state": _state(checked),
                "problems": checked.problems,
                "notes": checked.notes,
            }
            for checked in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _state(checked: Checked) -> str:
    if checked.skipped:
        return "skipped"
    return "failed" if checked.problems else "ok"
