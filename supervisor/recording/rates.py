"""Figures of the whole system for the object of a step, from the heartbeats of its actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

COUNTERS: Final = ("generated_tokens", "prefilled_tokens", "prefix_tokens")
"""Of an engine's heartbeat: tokens sampled, tokens of prompts computed, and found in the cache."""
GIB_IN_MIB: Final = 1024


class _Beat(NamedTuple):
    at_s: float
    counts: tuple[int, ...]


@dataclass(slots=True)
class SystemFigures:
    """The last two heartbeats of every engine, and the memory of every actor."""

    _beats: dict[str, tuple[_Beat, _Beat]] = field(default_factory=dict)
    _rss_mib: dict[str, float] = field(default_factory=dict)

    def heard(self, actor: str, statistics: dict[str, Any], now_s: float) -> None:
        """Look at one heartbeat."""
        self._rss_mib[actor] = float(statistics.get("rss_mib", 0.0))
        if not all(isinstance(statistics.get(name), int) for name in COUNTERS):
            return
        beat = _Beat(now_s, tuple(statistics[name] for name in COUNTERS))
        _, last = self._beats.get(actor, (beat, beat))
        # The counters of a restarted engine begin again.
        begun_again = any(new < old for new, old in zip(beat.counts, last.counts, strict=True))
        self._beats[actor] = (beat, beat) if begun_again else (last, beat)

    def metrics(self) -> dict[str, float]:
        """Of this moment; what no engine said is left out."""
        figures = {"perf/cpu_memory_actors_gb": sum(self._rss_mib.values()) / GIB_IN_MIB}
        rates: list[float] = []
        computed = cached = 0
        for first, last in self._beats.values():
            if last.at_s > first.at_s:
                sampled, prefilled, found = (
                    new - old for new, old in zip(last.counts, first.counts, strict=True)
                )
                rates.append(sampled / (last.at_s - first.at_s))
                computed, cached = computed + prefilled, cached + found
        if rates:
            figures["perf/tokens_per_gpu_per_sec"] = sum(rates) / len(rates)
        if computed + cached:
            figures["rollout/prefix_cache_hit_rate"] = cached / (computed + cached)
        return figures
