"""The whole topology: what a run is made of, as one frozen tree."""

from __future__ import annotations

from milepost.configs.actors import (
    AgentConfig,
    BufferConfig,
    CustomConfig,
    EngineConfig,
    EvaluationEngineConfig,
    EvaluatorConfig,
    GuestsConfig,
    PublisherConfig,
    RolloutConfig,
    SessionConfig,
    TrainerConfig,
)
from milepost.configs.base import Config
from milepost.configs.run import (
    AlgorithmConfig,
    ArchiveConfig,
    DataConfig,
    GuardConfig,
    LimitsConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    TrackingConfig,
)
from milepost.configs.system import SystemConfig


class ActorsConfig(Config, kw_only=True):
    """`[actors]`: the built-in actors of this run; a missing table means no such actor."""

    rollout: RolloutConfig | None = None
    agent: AgentConfig | None = None
    guests: GuestsConfig | None = None
    session: SessionConfig | None = None
    engine: EngineConfig | None = None
    evaluation_engine: EvaluationEngineConfig | None = None
    buffer: BufferConfig | None = None
    trainer: TrainerConfig | None = None
    publisher: PublisherConfig | None = None
    evaluator: EvaluatorConfig | None = None


class Topology(Config, kw_only=True):
    """One run. Made by `milepost.configs.load`, checked by `milepost.supervisor.checks`."""

    run: RunConfig
    model: ModelConfig | None = None
    data: DataConfig | None = None
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    guard: GuardConfig = GuardConfig()
    tracking: TrackingConfig = TrackingConfig()
    archive: ArchiveConfig = ArchiveConfig()
    system: SystemConfig = SystemConfig()
    actors: ActorsConfig = ActorsConfig()
    custom: dict[str, CustomConfig] = {}

    def names(self, kind: str) -> tuple[str, ...]:
        """Process names of one kind of actor, in order; empty when the run has none.

        Kinds with replicas are numbered (`engine-0`), the others carry their kind's name.

        Raises:
            KeyError: no such kind.
        """
        actors = self.actors
        match kind:
            case "rollout":
                return (kind,) if actors.rollout else ()
            case "guests":
                return (kind,) if actors.guests else ()
            case "buffer":
                return (kind,) if actors.buffer else ()
            case "publisher":
                return (kind,) if actors.publisher else ()
            case "evaluator":
                return (kind,) if actors.evaluator else ()
            case "agent":
                count = actors.agent.replicas if actors.agent else 0
            case "session":
                count = actors.session.replicas if actors.session else 0
            case "engine":
                count = actors.engine.replicas if actors.engine else 0
            case "evaluation_engine":
                fleet = actors.evaluation_engine
                count = fleet.replicas if fleet else 0
            case "trainer":
                count = actors.trainer.ranks if actors.trainer else 0
            case _:
                count = self.custom[kind].replicas
        return tuple(f"{kind}-{index}" for index in range(count))
