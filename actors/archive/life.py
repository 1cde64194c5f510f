"""How a run ended, as far as its archive must agree with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.messages.shared import Positive

DONE: Final = "done"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What a process said last of its archive: a lower bound, it may have written more since."""

    records: Positive
    """It had."""
    head: str
    """Digest of the last of them, hex."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The last life of a run that has ended; nothing when it goes on, or its end was not written.

    A process that the supervisor had to kill at the end wrote no closing record.
    """

    run_id: str = ""
    is_done: bool = False
    killed: frozenset[str] = frozenset()
    ends: dict[str, End] = {}
    """Of each process that had written something when it said so."""
    problem: str = ""
    """Why nothing is known of it, though it was written down."""

    def closed_run(self, writer: str) -> str:
        """The run at whose end this process ended in order; empty: it is not known to have."""
        return self.run_id if self.is_done and writer not in self.killed else ""


def life_of(run_folder: Path) -> Life:
    """Read summary.json and events.jsonl; a file that cannot be read says so in `problem`."""
    name = "summary.json"
    try:
        summary = msgspec.json.decode((run_folder / name).read_bytes())
        statistics: dict[str, Any] = summary.get("statistics", {})
        archives = {actor: said.get("archive") for actor, said in statistics.items()}
        ends = {
            actor: msgspec.convert(said, End)
            for actor, said in archives.items()
            if said and said["records"]
        }
        run_id, status, since = summary["run_id"], summary["status"], summary["started_at"]
        name = "events.jsonl"
        killed = frozenset(_killed(run_folder / name, since))
    except FileNotFoundError:
        return Life()
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return Life(problem=f"{name} is damaged ({type(error).__name__}: {error})")
    return Life(run_id=run_id, is_done=status == DONE, killed=killed, ends=ends)


def _killed(path: Path, since: float) -> list[str]:
    events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]
    return [each["source"] for each in events if each["kind"] == "killed" and each["time"] >= since]
