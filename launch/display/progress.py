"""What is known about a run while it goes on: a pure merge of snapshots, steps and events.

No terminal and no clock: times are arguments. Snapshots may come late, twice or not at all; a
newer one replaces what an older one said, and steps never go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from msgspec import Struct, convert

from milepost.launch.reading import read_flow
from milepost.launch.visible import visible_line
from milepost.messages.evaluator import Evaluation
from milepost.messages.supervisor import EventReported, Snapshot
from milepost.supervisor.cleanup.unfinished import EVALUATION

WINDOW_STEPS: Final = 20
"""Steps over which speeds and the remaining time are judged."""
CURVE_STEPS_MAX: Final = 512
EVENTS_MAX: Final = 4
QUIET: Final = frozenset({"ready", "work_finished"})
"""Kinds of events that only events.jsonl keeps: they tell nothing a person waits for."""
REWARD: Final = "rollout/raw_reward"
STALENESS: Final = ("train/staleness/mean", "train/staleness/max")
QUEUE: Final = "rollout/fully_async/queue_size"
LOSS: Final = ("train/nll", "train/loss")
TOKENS: Final = "train/loss_tokens"
WASTE: Final = "rollout/waste/"
VERSION: Final = "train/version"
"""Batches trained so far; the trainer alone reports it, once for each step."""


class Line(Struct, frozen=True):
    """One event as a person reads it."""

    source: str
    kind: str
    text: str


class Progress:
    """The run as far as it was told.

    Args:
        name: of the run.
        steps: that the run is to train.
        success_metric: agent metric that counts as success.
        supervised: recorded conversations are imitated: there is a loss, and no reward.
        sync: rollout and training take turns.
    """

    def __init__(
        self,
        name: str,
        steps: int,
        success_metric: str,
        *,
        supervised: bool = False,
        sync: bool = False,
    ) -> None:
        self.name = name
        self.steps = steps
        self.supervised = supervised
        self._sync = sync
        self._window: deque[Mapping[str, float]] = deque(maxlen=WINDOW_STEPS)
        self.success_name = f"rollout/{success_metric}"
        self.step = 0
        self.phase = "starting"
        self.elapsed_s = 0.0
        self.waiting = ""
        self.metrics: dict[str, float] = {}
        self.curve: deque[float] = deque(maxlen=CURVE_STEPS_MAX)
        self.lines: deque[Line] = deque(maxlen=EVENTS_MAX)
        self._arrivals: deque[tuple[float, int, float]] = deque(maxlen=WINDOW_STEPS + 1)
        self._versions: dict[str, int] = {}
        self._sampled: deque[tuple[float, float]] = deque(maxlen=6)

    # ---- what it is told -----------------------------------------------------------------

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """Merge the state of the whole run; an older one than the last changes nothing."""
        run = snapshot.run
        elapsed_s = float(run.get("elapsed_s", 0.0))
        if elapsed_s < self.elapsed_s:
            return
        self.elapsed_s = elapsed_s
        self.phase = str(run.get("phase", self.phase))
        self.waiting = str(run.get("waiting", ""))
        self._versions = dict(_engine_numbers(snapshot.actors, "version"))
        tokens = sum(count for _, count in _engine_numbers(snapshot.actors, "generated_tokens"))
        if self._sampled and tokens < self._sampled[-1][1]:
            self._sampled.clear()  # an engine began again, and its counter with it
        self._sampled.append((elapsed_s, float(tokens)))

    def take_step(self, metrics: Mapping[str, float], now_s: float) -> None:
        """Merge the metrics of one step, or of another source than the trainer."""
        self.metrics.update(metrics)
        done = int(metrics.get(VERSION, 0))
        if done <= self.step:
            return
        self.step = done
        self._window.append(metrics)
        self._arrivals.append((now_s, done, metrics.get(TOKENS, 0.0)))
        values = (self.success, self.reward, self.loss)
        value = next((value for value in values if value is not None), None)
        if value is not None:
            self.curve.append(value)

    def begin_life(self) -> None:
        """The run was resumed: what comes is measured without the time in which it stood still."""
        self._window.clear()
        self._arrivals.clear()

    def take_event(self, event: EventReported) -> bool:
        """Remember an event; False when it is not worth showing."""
        if event.kind in QUIET:
            return False
        text = scores(event.values) if event.kind == EVALUATION else event.text
        # An error's words are those of an agent, a tool or a guest.
        self.lines.append(Line(event.source, event.kind, visible_line(text)))
        return True

    # ---- what it knows -------------------------------------------------------------------

    @property
    def success(self) -> float | None:
        """Share of the last batch's episodes that succeeded."""
        return self.metrics.get(self.success_name)

    @property
    def reward(self) -> float | None:
        """Mean reward of the last batch."""
        return None if self.supervised else self.metrics.get(REWARD)

    @property
    def loss(self) -> float | None:
        """Loss of the last step; nats a token in supervised training."""
        return next((self.metrics[name] for name in LOSS if name in self.metrics), None)

    @property
    def queue(self) -> int | None:
        """Groups waiting in the buffer after the last batch was taken."""
        return int(self.metrics[QUEUE]) if QUEUE in self.metrics else None

    @property
    def staleness(self) -> tuple[float, float] | None:
        """Mean and highest age, in versions, of the last batch's tokens."""
        mean, highest = (self.metrics.get(name) for name in STALENESS)
        return None if mean is None or highest is None else (mean, highest)

    @property
    def waste(self) -> tuple[float, str] | None:
        """Share of the tokens that ended before the last step and were wasted; the worst account.

        Of those that were trained or wasted: evaluations are neither.
        """
        if not self._window:
            return None
        last = self._window[-1]
        accounts = {name: last[name] for name in last if name.startswith(WASTE)}
        accounts.pop(f"{WASTE}evaluated_tokens", None)
        wasted = sum(accounts.values())
        if not wasted:
            return None
        worst = max(accounts, key=lambda name: accounts[name])
        name = worst.removeprefix(WASTE).removesuffix("_tokens")
        return wasted / (wasted + last.get(TOKENS, 0.0)), name

    @property
    def reading(self) -> str:
        """Which side is the bottleneck, how fresh the data is, and the key to turn."""
        return read_flow(self._window, sync=self._sync)

    @property
    def versions(self) -> tuple[int, int] | None:
        """Lowest and highest version that the engines serve."""
        known = self._versions.values()
        return (min(known), max(known)) if known else None

    @property
    def step_s(self) -> float | None:
        """Mean seconds of one step, over the last ones."""
        if len(self._arrivals) < 2:
            return None
        (first_s, first, _), (last_s, last, _) = self._arrivals[0], self._arrivals[-1]
        return (last_s - first_s) / (last - first) if last > first else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the present pace."""
        return None if self.step_s is None else self.step_s * max(0, self.steps - self.step)

    @property
    def trained_per_s(self) -> float | None:
        """Tokens with loss that the trainer took in a second, over the last steps."""
        if self.step_s is None:
            return None
        seconds = self._arrivals[-1][0] - self._arrivals[0][0]
        tokens = sum(tokens for _, _, tokens in list(self._arrivals)[1:])
        return tokens / seconds if seconds > 0 else None

    @property
    def sampled_per_s(self) -> float | None:
        """Tokens that all engines sampled in a second, over the last snapshots."""
        if len(self._sampled) < 2:
            return None
        (first_s, first), (last_s, last) = self._sampled[0], self._sampled[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None

    def sparkline(self, width: int) -> str:
        """The curve of the success so far, as `width` bars at most."""
        return sparkline(self.curve, width)


def scores(values: dict[str, Any]) -> str:
    """An evaluation in a few words: `version 0: success 0.105 sampled, 0.800 greedy`."""
    found = convert(values, Evaluation)
    ways = [(found.sampled, "sampled"), (found.greedy, "greedy")]
    name = "success" if any(score and score.success is not None for score, _ in ways) else "reward"
    measured = [(getattr(score, name), way) for score, way in ways if score]
    words = [f"{'not reported' if x is None else f'{x:.3f}'} {way}" for x, way in measured]
    if found.external:
        words = [f"{name} {value:.4g}" for name, value in found.external.items()]
        return f"version {found.version}: {', '.join(words)}"
    return f"version {found.version}: held-out {name} {', '.join(words)}"


BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], width: int) -> str:
    """Means of equal shares of the values as bars; the scale reaches from 0 to at least 1."""
    numbers = list(values)
    if not numbers or width < 1:
        return ""
    count = min(width, len(numbers))
    edges = [len(numbers) * number // count for number in range(count + 1)]
    means = [fmean(numbers[a:b]) for a, b in pairwise(edges)]
    lowest, highest = min(0.0, *means), max(1.0, *means)
    steps = (len(BARS) - 1) / (highest - lowest)
    return "".join(BARS[round((mean - lowest) * steps)] for mean in means)


def _engine_numbers(actors: Iterable[Mapping[str, Any]], name: str) -> Iterable[tuple[str, int]]:
    for actor in actors:
        value = actor.get("statistics", {}).get(name)
        # An engine that serves nothing yet has version -1.
        if actor.get("kind") == "engine" and isinstance(value, int) and value >= 0:
            yield str(actor["actor"]), value
