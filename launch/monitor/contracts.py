"""The four contracts as four lamps. A lamp is green only when something was measured and held.

    grey    nothing was measured, or nothing could be
    green   everything that was measured held
    yellow  it holds now and did not always; or groups are refused for their age; or a setting
            lets older ones be trained, or sets no limit
    red     it was broken within the last steps

Refusals are those of the trainer's door and of the publisher's canary; both stand in events.jsonl,
so that a monitor that comes late counts them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from milepost.launch.monitor.updates import About

RECENT_STEPS: Final = 20
"""A contract that was broken within so many steps is red."""
COVERAGE: Final = "rollout/weight_version/sample_coverage"
S_OLD_MAX: Final = "rollout/staleness/s_old_max"
MIXED: Final = "rollout/weight_version/mixed_version_ratio"
SAME_VERSION: Final = "train/train_rollout_logprob_abs_diff_same_version"
ROUTE_MISMATCH: Final = "train/route_mismatch_ratio"
ANY_VERSION: Final = "train/train_rollout_logprob_abs_diff"
PROBE: Final = "perf/canary_logprob_difference"
_MISMATCH: Final = re.compile(r"rollout/tito_session_mismatch_rate/v[12]/(\w+)")
STALE: Final = "C4 same version: oldest token"
"""How the door refuses a group for its age alone: the limit does its work."""
HARMLESS: Final = "assistant_text"
"""Kind of mismatch that tells nothing of the system: the model wrote what renders differently."""
_CONTRACT: Final = re.compile(r"(C[1-4])\b")
_STEP: Final = re.compile(r"step (\d+)")


class Colour(StrEnum):
    """Of a lamp."""

    GREY = "grey"
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"


class Lamp(Struct, frozen=True, kw_only=True):
    """One contract as a person sees it."""

    name: str
    title: str
    colour: Colour
    figure: str
    """The number that the colour stands on."""
    note: str = ""
    """What else is known."""
    needed: bool = True
    """False: there is nothing that could be measured, and nothing that could be broken."""


class Refusals(Struct):
    """How often each contract was broken, and at which step last."""

    counts: dict[str, int] = {}
    last_step: dict[str, int] = {}
    last_reason: dict[str, str] = {}
    num_stale: int = 0
    last_stale: int = 0
    """Step of the last group that was refused for its age alone."""

    def note(self, event: Mapping[str, Any]) -> None:
        """Look at one event."""
        match event.get("kind"):
            case "refused_at_door":
                values = event.get("values") or {}
                reasons = [str(reason) for reason in values.values()]
            case "canary":
                reasons = [f"C3 canary: {event.get('text', '')}"]
            case _:
                return
        found = _STEP.search(str(event.get("text", "")))
        for reason in reasons:
            if reason.startswith(STALE):
                self.num_stale += 1
                self.last_stale = int(found[1]) if found else self.last_stale
                continue
            # A seal, reward or group that does not hold names none: the row is not the sampled one.
            contract = _CONTRACT.match(reason)
            name = contract[1] if contract else "C1"
            self.counts[name] = self.counts.get(name, 0) + 1
            self.last_reason[name] = reason
            if found:
                self.last_step[name] = int(found[1])

    def colour(self, name: str, step: int, *, measured: bool) -> Colour:
        """Grey, green, or how long ago it was broken."""
        if not self.counts.get(name):
            return Colour.GREEN if measured else Colour.GREY
        recent = step - self.last_step.get(name, step) < RECENT_STEPS
        return Colour.RED if recent else Colour.YELLOW


def lamps(
    about: About,
    metrics: Mapping[str, float],
    refusals: Refusals,
    *,
    step: int,
    groups_trained: int,
    guard: str = "",
) -> tuple[Lamp, ...]:
    """All four, C1 to C4.

    Args:
        about: limits of this run.
        metrics: latest value of each metric.
        refusals: counted from the events.
        step: batches trained.
        groups_trained: groups that passed the trainer's door; 0 when nobody said so.
        guard: why a guard stopped the run; empty when none did.
    """
    door = _Door(refusals, step, groups_trained)
    return (
        _tokens(door, metrics),
        _routes(door, metrics, about),
        _logprobs(door, metrics, about, guard),
        _versions(door, metrics, about),
    )


class _Door(Struct, frozen=True):
    refusals: Refusals
    step: int
    groups: int

    def colour(self, name: str, *, measured: bool) -> Colour:
        return self.refusals.colour(name, self.step, measured=measured)

    def is_recent(self, step: int) -> bool:
        return self.step - step < RECENT_STEPS

    def refused(self, name: str) -> str:
        return f"{self.refusals.counts.get(name, 0)} refused"


def _tokens(door: _Door, metrics: Mapping[str, float]) -> Lamp:
    """Hashed again at the door, group by group; what no other contract speaks of counts here."""
    colour = door.colour("C1", measured=door.groups > 0)
    figure = f"{door.groups:,} groups, {door.refused('C1')}" if door.groups else "not measured"
    kinds = {m[1]: value for name, value in metrics.items() if (m := _MISMATCH.fullmatch(name))}
    harmful = {kind: value for kind, value in kinds.items() if kind != HARMLESS and value > 0}
    note = "every prefix hash agrees" if colour is Colour.GREEN else ""
    if harmful:
        kind, value = max(harmful.items(), key=lambda item: item[1])
        note = f"{value:.1%} of rows differ from their rendering: {kind}"
        colour = Colour.YELLOW if colour is Colour.GREEN else colour
    elif colour in {Colour.YELLOW, Colour.RED}:
        note = door.refusals.last_reason["C1"]
    return Lamp(name="C1", title="same tokens", colour=colour, figure=figure, note=note)


def _routes(door: _Door, metrics: Mapping[str, float], about: About) -> Lamp:
    """Hashed again at the door and replayed; dense models have none."""
    mismatch = metrics.get(ROUTE_MISMATCH)
    colour = door.colour("C2", measured=mismatch is not None)
    needed = True
    if colour is Colour.GREY:
        needed = about.routes != "dense"
        figure = "not measured" if needed else "not needed"
        note = "routes are not replayed" if needed else "a dense model has no routes"
        note = "no batch is trained yet" if about.routes == "replayed" else note
    else:
        figure = f"{door.groups:,} groups, {door.refused('C2')}" if door.groups else "replayed"
        note = door.refusals.last_reason.get("C2", "")
        if mismatch is not None and not note:
            note = f"{mismatch:.1%} of choices would have been others"
    return Lamp(
        name="C2", title="same routes", colour=colour, figure=figure, note=note, needed=needed
    )


def _logprobs(door: _Door, metrics: Mapping[str, float], about: About, guard: str) -> Lamp:
    """Of tokens of the very weights in training, and of a probe after each publication."""
    same, probe = metrics.get(SAME_VERSION), metrics.get(PROBE)
    judged = [
        (value, limit)
        for value, limit in (
            (same, about.guard_max or about.difference_max),
            (probe, about.difference_max),
        )
        if value is not None and limit > 0
    ]
    colour = door.colour("C3", measured=bool(judged))
    if guard:
        colour, note = Colour.RED, guard
    elif colour in {Colour.YELLOW, Colour.RED}:
        note = door.refusals.last_reason["C3"]
    else:
        any_version = metrics.get(ANY_VERSION)
        note = "" if any_version is None else f"{_nats(any_version)} with older weights"
    # Not a number is not below any limit.
    if not all(value <= limit for value, limit in judged):
        colour = Colour.RED
    if same is None and probe is None:
        return Lamp(
            name="C3", title="same log-probs", colour=colour, figure="not measured", note=note
        )
    if not judged and colour is Colour.GREY:
        colour, note = Colour.YELLOW, "measured, but no limit is set"
    worst = max(value for value in (same, probe) if value is not None)
    most = max((limit for _, limit in judged), default=0.0)
    figure = _nats(worst) + (f" of {_nats(most)}" if most else "") + " nats"
    return Lamp(name="C3", title="same log-probs", colour=colour, figure=figure, note=note)


def _nats(value: float) -> str:
    """In five characters: these differences span ten orders of magnitude."""
    return f"{value:.0e}" if value else "0"


def _versions(door: _Door, metrics: Mapping[str, float], about: About) -> Lamp:
    """Every sampled token knows its version, and none is older than allowed."""
    coverage, oldest = metrics.get(COVERAGE), metrics.get(S_OLD_MAX)
    colour = door.colour("C4", measured=coverage is not None)
    broken = colour in {Colour.YELLOW, Colour.RED}
    note = door.refusals.last_reason["C4"] if broken else ""
    if coverage is None:
        figure = door.refused("C4") if broken else "not measured"
        return Lamp(name="C4", title="same version", colour=colour, figure=figure, note=note)
    limit, stale = about.staleness_max, door.refusals.num_stale
    figure = f"{coverage:.0%} known"
    if oldest is not None:
        figure += f", {oldest:.0f}{'' if limit is None else f' of {limit}'} old"
    if not broken:
        words = [f"{metrics[MIXED]:.0%} of rows mixed"] if MIXED in metrics else []
        words += [f"{stale} groups refused for their age"] if stale else []
        note = ", ".join(words)
    too_old = limit is not None and oldest is not None and oldest > limit
    if not coverage >= 1 or (too_old and not about.stale_is_corrected):
        colour = Colour.RED
    elif colour is Colour.GREEN and (
        too_old or (stale and door.is_recent(door.refusals.last_stale))
    ):
        colour = Colour.YELLOW
    return Lamp(name="C4", title="same version", colour=colour, figure=figure, note=note)
