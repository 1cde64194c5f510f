"""Figures of the whole system for the object of a step, from the heartbeats of its actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

SAMPLED: Final = "generated_tokens"
"""Of an engine's heartbeat: tokens sampled."""
DRAFTS: Final = ("draft_tokens", "draft_tokens_accepted", "draft_passes")
"""Of one with speculative decoding: tokens proposed, those accepted, and passes that judge."""
ROLLOUT: Final = "engine"
"""Kind of the engines that training samples with; those that only evaluate are idle in between."""
GIB_IN_MIB: Final = 1024
SPAN_S_MIN: Final = 0.5
"""Beats come once a second; the last one of a life at any time, and soon after another."""


class _Beat(NamedTuple):
    at_s: float
    counts: tuple[int, ...]


class _Body(NamedTuple):
    kind: str
    statistics: dict[str, Any]


@dataclass(slots=True)
class SystemFigures:
    """The last two heartbeats of every rollout engine, and the body of every actor."""

    _beats: dict[str, tuple[_Beat, _Beat]] = field(default_factory=dict)
    _bodies: dict[str, _Body] = field(default_factory=dict)

    def heard(self, actor: str, kind: str, statistics: dict[str, Any]) -> None:
        """Look at one heartbeat.

        Its time is the actor's own: whoever reads several at once, after a pause, would find that
        all of their tokens were sampled within a millisecond.
        """
        self._bodies[actor] = _Body(kind, statistics)
        if kind != ROLLOUT or not isinstance(statistics.get(SAMPLED), int):
            return
        at_s = float(statistics["uptime_s"])
        beat = _Beat(at_s, tuple(int(statistics.get(name, 0)) for name in (SAMPLED, *DRAFTS)))
        first, last = self._beats.get(actor, (beat, beat))
        # Time and counters of a restarted engine begin again.
        pairs = zip((at_s, *beat.counts), (last.at_s, *last.counts), strict=True)
        if any(new < old for new, old in pairs):
            first = last = beat
        is_extra = at_s - last.at_s < SPAN_S_MIN and first is not last
        self._beats[actor] = (first if is_extra else last), beat

    def metrics(self) -> dict[str, float]:
        """Of this moment; what no engine said is left out."""
        figures = self._body_metrics()
        rates: list[float] = []
        drafted = [0, 0, 0, 0]
        for first, last in self._beats.values():
            if last.at_s > first.at_s:
                new = [now - then for now, then in zip(last.counts, first.counts, strict=True)]
                rates.append(new[0] / (last.at_s - first.at_s))
                if new[-1]:
                    drafted = [total + more for total, more in zip(drafted, new, strict=True)]
        if rates:
            figures["perf/tokens_per_gpu_per_sec"] = sum(rates) / len(rates)
        sampled, proposed, accepted, passes = drafted
        if proposed:
            figures["rollout/spec_accept_rate"] = accepted / proposed
        if passes:
            figures["rollout/spec_accept_length"] = sampled / passes
        return figures

    def _body_metrics(self) -> dict[str, float]:
        """Sums over the actors of each kind; a run of a thousand has a page for each elsewhere."""
        figures = {"perf/cpu_memory_actors_gb": 0.0}
        busy: dict[str, list[float]] = {}
        for kind, said in self._bodies.values():
            name = f"system/{kind}"
            memory_gib = float(said.get("rss_mib", 0.0)) / GIB_IN_MIB
            figures["perf/cpu_memory_actors_gb"] += memory_gib
            _add(figures, f"{name}/memory_gib", memory_gib)
            _add(figures, f"{name}/cores", float(said.get("cpu_share", 0.0)))
            if "gpu_memory_mib" in said:
                _add(figures, f"{name}/gpu_memory_gib", said["gpu_memory_mib"] / GIB_IN_MIB)
                busy.setdefault(f"{name}/gpu_utilization", []).append(said["gpu_utilization"])
        return figures | {name: sum(each) / len(each) for name, each in busy.items()}


def _add(figures: dict[str, float], name: str, value: float) -> None:
    figures[name] = figures.get(name, 0.0) + value
