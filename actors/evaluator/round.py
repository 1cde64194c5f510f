"""One evaluation of one held version: every held-out prompt, in every mode, once.

Invariants:
    EV-1 (one version): an outcome counts only if every sampled token of it is of the held version.
    EV-2 (same questions): prompts come in a fixed order with seeds derived from the prompt and the
        mode alone, so scores of different versions differ by the policy only.
    EV-3 (no invention): an episode that failed, was refused or ran out of time is counted as that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.actors.effects import Ask, Effect, Tell
from milepost.actors.evaluator.scores import Outcome, Tally
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.configs.seeds import derive_seed
from milepost.messages.agent import CancelEpisode, RunEpisode
from milepost.messages.evaluator import Transcript
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import (
    AbandonTrajectory,
    FinishTrajectory,
    OpenSessions,
    SessionSpec,
)
from milepost.messages.shared import Prompt, Purpose, SamplingParams, Status
from milepost.messages.trajectory import Trajectory

FAILURES_MAX = 1
MIXED_MAX = 2
LOSSES_MAX = 8


@dataclass(slots=True)
class Item:
    """One prompt in one mode."""

    mode: str
    index: int
    attempt: int = 0
    agent: str = ""
    session: str = ""
    is_finishing: bool = False
    failures: int = 0
    losses: int = 0
    mixed: int = 0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Round:
    """See the module."""

    settings: EvaluatorSettings
    prompts: Sequence[Prompt]
    version: int
    serial: int
    """Tells the trajectories of one round from those of another of the same version."""
    started_s: float
    agents: dict[str, int]
    """Host -> episodes it runs at once, as it is now."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    _waiting: deque[Item] = field(default_factory=deque)
    _out: dict[str, Item] = field(default_factory=dict)
    """Trajectory id -> item, from its opening to its outcome."""
    _next_session: int = 0

    def __post_init__(self) -> None:
        """Every prompt in every mode waits."""
        for mode in self.settings.modes:
            self.tallies[mode] = Tally(len(self.prompts))
            self._waiting.extend(Item(mode, index) for index in range(len(self.prompts)))

    @property
    def is_over(self) -> bool:
        """True when every item has an outcome, good or bad."""
        return not self._waiting and not self._out

    def trajectory_id(self, item: Item) -> str:
        """E.g. `eval0-v12-greedy.3`."""
        return f"{self.group_id(item)}.{item.index}"

    def group_id(self, item: Item) -> str:
        """All items of one mode of this round."""
        return f"eval{self.serial}-v{self.version}-{item.mode}"

    # ---- going out -----------------------------------------------------------------------

    def send_out(self) -> list[Effect]:
        """Open sessions for waiting items as far as there is room."""
        effects: list[Effect] = []
        while self._waiting and len(self._out) < self._room():
            item = self._waiting.popleft()
            sessions = self.settings.sessions
            item.session = sessions[self._next_session % len(sessions)]
            self._next_session += 1
            self._out[self.trajectory_id(item)] = item
            key = f"open/{self.trajectory_id(item)}/{item.attempt}"
            effects.append(Ask(item.session, OpenSessions(sessions=(self._spec(item),)), key))
        return effects

    def _room(self) -> int:
        return min(self.settings.in_flight_max, sum(self.agents.values()))

    def _spec(self, item: Item) -> SessionSpec:
        return SessionSpec(
            trajectory_id=self.trajectory_id(item),
            group_id=self.group_id(item),
            prompt_id=self.prompts[item.index].prompt_id,
            attempt=item.attempt,
            group_size=1,
            sampling=self._sampling(item),
            limits=self.settings.limits,
            purpose=Purpose.EVALUATE,
            deliver_to="evaluator",
            version_min=self.version,
        )

    def _sampling(self, item: Item) -> SamplingParams:
        base = self.settings.modes[item.mode]
        return SamplingParams(
            temperature=base.temperature,
            top_p=base.top_p,
            top_k=base.top_k,
            min_p=base.min_p,
            tokens_max=base.tokens_max,
            seed=self._seed("sample", item),
        )

    def _seed(self, use: str, item: Item) -> int:
        prompt_id = self.prompts[item.index].prompt_id
        return derive_seed(self.settings.seed, "evaluator", use, prompt_id, item.mode)

    def opened(self, trajectory_id: str, attempt: int, address: str) -> list[Effect]:
        """The session exists, at this HTTP address if any: an agent may run the episode."""
        item = self._newest(trajectory_id, attempt)
        if item is None or item.agent:
            return []
        if not any(self.agents.values()):
            return self._again(item, "no agent is here any more")
        item.agent = self._least_loaded()
        episode = RunEpisode(
            trajectory_id=trajectory_id,
            group_id=self.group_id(item),
            attempt=item.attempt,
            prompt=self.prompts[item.index],
            limits=self.settings.limits,
            purpose=Purpose.EVALUATE,
            seed=self._seed("episode", item),
            session=item.session,
            report_to="evaluator",
            address=address,
        )
        return [Tell(item.agent, episode, key=f"run/{trajectory_id}/{attempt}")]

    def _least_loaded(self) -> str:
        loads = {agent: 0 for agent, room in self.agents.items() if room}
        for item in self._out.values():
            if item.agent in loads:
                loads[item.agent] += 1
        return min(loads, key=lambda agent: (loads[agent] / self.agents[agent], agent))

    # ---- coming back ---------------------------------------------------------------------

    def episode_ended(self, ended: EpisodeEnded) -> list[Effect]:
        """An agent's verdict."""
        item = self._newest(ended.trajectory_id, ended.attempt)
        if item is None or item.is_finishing:
            return []
        item.info = ended.info
        if ended.status in (Status.COMPLETED, Status.TRUNCATED) and ended.reward is not None:
            item.is_finishing = True
            verdict = FinishTrajectory(
                trajectory_id=ended.trajectory_id,
                attempt=ended.attempt,
                status=ended.status,
                reward=ended.reward,
                metrics=ended.metrics,
                generation=ended.generation,
                received=ended.received,
                limit=ended.cause if ended.status is Status.TRUNCATED else "",
            )
            key = f"finish/{ended.trajectory_id}/{ended.attempt}"
            return [Ask(item.session, verdict, key)]
        if ended.status is Status.ABORTED:
            return self._lost(item, ended.cause)
        item.failures += 1
        if item.failures <= FAILURES_MAX:
            return self._again(item, ended.cause)
        del self._out[ended.trajectory_id]
        self.tallies[item.mode].num_failed += 1
        return [self._abandon(item, ended.cause)]

    def trajectory_finished(
        self, trajectory: Trajectory, others: tuple[Trajectory, ...] = ()
    ) -> list[Effect]:
        """The rows of an episode: its outcome, if every sampled token is of the held version.

        A session that branched has several rows with one reward; each of its replies counts.
        """
        rows = (trajectory, *others)
        item = self._out.get(trajectory.trajectory_id)
        if item is None or not item.is_finishing:
            return []
        if trajectory.metadata.get("attempt", item.attempt) != item.attempt:
            return []  # of an attempt that was given up; the newest one has its own coming
        if any(span.version != self.version for row in rows for span in row.spans):
            item.mixed += 1
            if item.mixed <= MIXED_MAX:
                return self._again(item, "tokens of another version than the one measured")
            del self._out[trajectory.trajectory_id]
            self.tallies[item.mode].num_mixed += 1
            return []
        del self._out[trajectory.trajectory_id]
        tally = self.tallies[item.mode]
        tally.outcomes.append(
            Outcome(
                index=item.index,
                category=str(self.prompts[item.index].metadata.get("category", "")),
                reward=trajectory.reward,
                metrics=trajectory.metrics,
                num_sampled_tokens=sum(bytes(row.loss_mask.data).count(1) for row in rows),
                truncated=any(row.status is Status.TRUNCATED for row in rows),
            )
        )
        if item.index < self.settings.transcripts:
            tally.transcripts[item.index] = self._transcript(item, trajectory)
        return []

    def _transcript(self, item: Item, trajectory: Trajectory) -> Transcript:
        prompt = self.prompts[item.index]
        return Transcript(
            version=self.version,
            greedy=item.mode == "greedy",
            prompt_id=prompt.prompt_id,
            reward=trajectory.reward,
            metrics=trajectory.metrics,
            messages=item.info.get("messages", prompt.messages),
        )

    def lost(self, trajectory_id: str, attempt: int, cause: str) -> list[Effect]:
        """An actor did not do its part of this attempt."""
        item = self._newest(trajectory_id, attempt)
        return self._lost(item, cause) if item else []

    def peer_lost(self, actor: str) -> list[Effect]:
        """An agent or session restarted: what it had is tried again."""
        effects: list[Effect] = []
        for item in list(self._out.values()):
            if actor == item.session or (actor == item.agent and not item.is_finishing):
                effects += self._lost(item, f"{actor} restarted")
        return effects

    def stop(self, cause: str) -> list[Effect]:
        """Time is up: stop what runs; it counts as missing."""
        effects: list[Effect] = []
        for trajectory_id, item in self._out.items():
            if item.agent:
                cancel = CancelEpisode(trajectory_id=trajectory_id, reason=cause)
                effects.append(Tell(item.agent, cancel))
            effects.append(self._abandon(item, cause))
        self._out.clear()
        self._waiting.clear()
        return effects

    def _lost(self, item: Item, cause: str) -> list[Effect]:
        item.losses += 1
        if item.losses <= LOSSES_MAX:
            return self._again(item, cause)
        del self._out[self.trajectory_id(item)]
        self.tallies[item.mode].num_failed += 1
        return [self._abandon(item, cause)]

    def _again(self, item: Item, cause: str) -> list[Effect]:
        trajectory_id = self.trajectory_id(item)
        del self._out[trajectory_id]
        effects = [self._abandon(item, cause)]
        item.attempt += 1
        item.agent, item.is_finishing = "", False
        self._waiting.append(item)
        return effects

    def _abandon(self, item: Item, cause: str) -> Effect:
        abandoned = AbandonTrajectory(
            trajectory_id=self.trajectory_id(item), attempt=item.attempt, reason=cause
        )
        return Tell(item.session, abandoned)

    def _newest(self, trajectory_id: str, attempt: int) -> Item | None:
        item = self._out.get(trajectory_id)
        return item if item is not None and item.attempt == attempt else None

    def __str__(self) -> str:
        """How far it is."""
        done = sum(len(tally.outcomes) for tally in self.tallies.values())
        total = sum(tally.num_prompts for tally in self.tallies.values())
        oldest = next(iter(self._out), "")
        return f"{done} of {total} episodes of version {self.version} done, oldest out {oldest}"
