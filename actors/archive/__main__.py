"""`python -m milepost.actors.archive RUN [--json]`: the audit behind `milepost audit`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from milepost.actors.archive.audit import Report, audit
from milepost.actors.archive.reader import NoArchive
from milepost.actors.commands import end_at_ctrl_c, say

DONE: Final = 0
FAULTS: Final = 1
NO_ARCHIVE: Final = 2
UNREADABLE: Final = 3
SHOWN_MAX: Final = 100
"""Faults in the text; JSON has them all."""


def main(words: list[str]) -> int:
    """Audit and print; the exit code."""
    folder = Path(words[0])
    try:
        report = audit(folder)
    except NoArchive as error:
        sys.stderr.write(f"error: {error}\n")
        return NO_ARCHIVE
    except OSError as error:
        sys.stderr.write(f"error: the archive cannot be read: {error}\n")
        return UNREADABLE
    in_json = "--json" in words[1:]
    say([msgspec.json.encode(report).decode()] if in_json else lines_of(report))
    return FAULTS if report.faults else DONE


def lines_of(report: Report) -> Iterator[str]:
    """The report for people."""
    for fault in report.faults[:SHOWN_MAX]:
        name = fault.trajectory_id
        if name and fault.attempt:
            name += f" attempt {fault.attempt}"
        if name and fault.row:
            name += f" row {fault.row}"
        yield f"{fault.contract}: {name + ': ' if name else ''}{fault.text} ({fault.where})"
    if (more := len(report.faults) - SHOWN_MAX) > 0:
        yield f"and {more} more; --json lists them all"
    for note in report.notes:
        yield f"note: {note}"
    counted = Counter(fault.contract for fault in report.faults)
    found = ", ".join(f"{contract} {count}" for contract, count in counted.items()) or "no faults"
    yield (
        f"{report.num_trajectories} trajectories ({report.num_rows} rows, {report.num_trained} "
        f"trained) in {report.num_records} records: {found}"
    )


if __name__ == "__main__":
    end_at_ctrl_c()
    sys.exit(main(sys.argv[1:]))
