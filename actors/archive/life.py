"""How a run ended, as far as its archive must agree with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

DONE: Final = "done"


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The last life of a run that has ended; nothing when it goes on, or its end was not written.

    A process that the supervisor had to kill at the end wrote no closing record.
    """

    run_id: str = ""
    is_done: bool = False
    killed: frozenset[str] = frozenset()
    records: dict[str, int] = {}
    """Process -> records that its archive had, by its own last word."""

    def closed_run(self, writer: str) -> str:
        """The run at whose end this process ended in order; empty: it is not known to have."""
        return self.run_id if self.is_done and writer not in self.killed else ""


def life_of(run_folder: Path) -> Life:
    """Read summary.json and events.jsonl; a file that cannot be read says nothing."""
    try:
        summary = msgspec.json.decode((run_folder / "summary.json").read_bytes())
        statistics: dict[str, Any] = summary.get("statistics", {})
        archives = {name: said.get("archive") for name, said in statistics.items()}
        return Life(
            run_id=summary["run_id"],
            is_done=summary["status"] == DONE,
            killed=frozenset(_killed(run_folder, summary["started_at"])),
            records={name: said["records"] for name, said in archives.items() if said},
        )
    except (OSError, msgspec.DecodeError, KeyError, AttributeError, TypeError):
        return Life()


def _killed(run_folder: Path, since: float) -> list[str]:
    path = run_folder / "events.jsonl"
    events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]
    return [each["source"] for each in events if each["kind"] == "killed" and each["time"] >= since]
