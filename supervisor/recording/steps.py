"""Gathers what several actors say of one step into its one object of metrics.jsonl.

A step's object has the number of batches trained when it ended: step k makes version k, and 0 is
what was measured before the first. The trainer speaks first of a step, then the publisher of the
version that it made, and now and then the evaluator; an object is open until the next one
is begun.
"""

from __future__ import annotations

from typing import Any, Final

from milepost.messages.supervisor import StepRecorded

VERSION: Final = "train/version"
"""Trainer's metric: number of batches trained when its step ended."""
HEAD: Final = ("step", "time")
"""Of an object, everything else is a metric."""


def steps_done(step: int, metrics: dict[str, Any]) -> int:
    """Steps that had been trained when this was recorded.

    The trainer counts the step it did, from 0; everybody else names the version they speak of,
    which is a number of steps.
    """
    return int(metrics.get(VERSION) or step)


class OpenStep:
    """The object that still grows.

    Args:
        reopened: the last object of an earlier part of the run, which is published once more.
    """

    def __init__(self, reopened: dict[str, Any] | None = None) -> None:
        self.fields = reopened
        self._sources: dict[str, str] = {}
        self._late: dict[str, int] = {}
        """Name -> step of a value that came late and has the plain name."""

    def add(
        self, message: StepRecorded, metrics: dict[str, Any], wall_s: float
    ) -> dict[str, Any] | None:
        """Merge what was said; returns the object before it when this begins the next one.

        Nothing that was said is lost: what two actors call by one name has the second one's name
        behind it, and what comes late goes into the object of its time; it says its step, too,
        where the name is taken there.
        """
        done, closed = steps_done(message.step, metrics), None
        if self.fields is None or done > self.fields["step"]:
            closed = self.fields
            self.fields = {"step": done, "time": round(wall_s, 3)}
            self._sources, self._late = {}, {}
        fields = self.fields
        if VERSION in metrics or VERSION not in fields:
            fields["time"] = round(wall_s, 3)
        late = done < fields["step"]
        for name, value in metrics.items():
            place = name
            if self._sources.get(name, message.source) != message.source:
                place = f"{name}@{message.source}"
            if late and place in fields:
                place = f"{name}@{done}"
            elif late:
                self._late[place] = done
            elif place in self._late:
                fields[f"{name}@{self._late.pop(place)}"] = fields[place]
            self._sources[place] = message.source
            fields[place] = value
        return closed
