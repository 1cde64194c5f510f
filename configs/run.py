"""The tables of a topology that are about the whole run, not about one actor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from milepost.configs.base import (
    Config,
    FileName,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    NonNegativeFloat32,
    Port,
    Positive,
    PositiveFloat,
    PositiveFloat32,
)
from milepost.configs.read import home_of


class Mode(StrEnum):
    """Whether generation goes on while the trainer trains."""

    ASYNC = "async"
    SYNC = "sync"


class RunConfig(Config, kw_only=True):
    """`[run]`"""

    name: FileName
    """Of its folder under runs/, with the time behind it."""
    seed: NonNegative = 0
    """Reaches every random choice of the run, but none of the recipe in `model.made_by`: runs that
    differ in their seed start from the same weights, so that they can be compared."""
    steps: Positive
    """Batches to train."""
    mode: Mode = Mode.ASYNC
    checkpoint_every_steps: NonNegative = 0
    """0: only at the end and on a drain."""
    checkpoints_keep: Positive = 2


class ModelConfig(Config, kw_only=True):
    """`[model]`"""

    path: str = ""
    """Folder with a Hugging Face checkpoint and tokenizer. Empty only with `made_by` or
    `create`."""
    made_by: str = ""
    """Recipe whose run makes the checkpoint when it is not in the cache yet, with the seed of its
    own file; for other starting weights, copy the recipe and set another seed there."""
    create: str = ""
    """`module:function(folder, seed, options)` that writes a fresh, untrained checkpoint."""
    create_options: dict[str, Any] = {}
    family: str = "qwen3"
    """Chat-template family (session actor)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_tokens_max: Positive = 4096

    @property
    def folder(self) -> Path:
        """`path` with the home folder in the place of its `~`."""
        return Path(home_of(self.path))


class DataConfig(Config, kw_only=True):
    """`[data]`"""

    prompts: str
    """`FILE.jsonl[@[a:b]]`, seen from where the run is started (not from the topology's folder), or
    `module:function(split, seed, options)` yielding prompts."""
    held_out_prompts: str = ""
    """Where the evaluator's prompts come from, in the same two forms. Empty: `prompts` with split
    `held_out`, which only a function can serve."""
    options: dict[str, Any] = {}
    """Passed to the function (and to the agent) unread."""
    reward: str = ""
    """`module:function`; empty when the agent reports the reward itself."""
    reward_deadline_s: PositiveFloat = 30.0
    shuffle: bool = True
    success_metric: str = "solved"
    """Agent metric that counts as success in curves and evaluations."""


class AlgorithmConfig(Config, kw_only=True):
    """`[algorithm]`: what is optimised."""

    estimator: Literal["grpo", "sft"] = "grpo"
    prompts_per_step: Positive = 8
    samples_per_prompt: Positive = 8
    minibatches_per_step: Positive = 1
    """Optimizer steps that share one batch."""
    normalize_std: bool = True
    """Divide the group-centred reward by the group's standard deviation (GRPO)."""
    std_epsilon: PositiveFloat32 = 1e-4
    clip_low: Fraction = 0.2
    clip_high: PositiveFloat32 = 0.28
    """Upper clip of the ratio is 1 + clip_high (clip-higher, DAPO)."""
    dual_clip: NonNegativeFloat32 = 0.0
    """0 is off; else c > 1 of dual-clip PPO for negative advantages."""
    correction: Literal["none", "tis", "clip_or_pop"] = "tis"
    """What corrects trainer, engine and version mismatch: truncated importance sampling, IcePop."""
    correction_low: NonNegativeFloat32 = 0.0
    correction_high: PositiveFloat32 = 2.0
    aggregation: Literal["per_token", "per_sample"] = "per_token"
    replay_routes: bool = False
    """Mixture models: train each token through the experts that the engine chose for it (rollout
    routing replay, R3). Routes travel with every row: layers * experts per token bytes a token."""
    kl_coef: NonNegativeFloat32 = 0.0
    """Not 0 needs a reference model; refused until one is configured."""
    entropy_coef: NonNegativeFloat32 = 0.0


class SamplingConfig(Config, kw_only=True):
    """`[sampling]`: how training rollouts are drawn. The trainer recomputes this distribution."""

    temperature: Annotated[float, Meta(ge=0.001, le=100)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0


class LimitsConfig(Config, kw_only=True):
    """`[limits]`: bounds of one episode."""

    turns_max: Positive = 30
    seconds_max: PositiveFloat = 3600.0
    reply_tokens_max: Positive = 8192
    tokens_max: Positive = 65536


class GuardConfig(Config, kw_only=True):
    """`[guard]`: when a run stops itself."""

    batches_without_spread_max: NonNegative = 5
    """Stop after this many batches in a row in which no group had any reward spread; 0 is off."""
    groups_filtered_in_a_row_max: NonNegative = 1000
    """Stop after the filters of the buffer dropped this many groups in a row and kept none; 0 is
    off. Each dropped group is replaced, so a filter that keeps nothing would sample for ever."""
    logprob_difference_max: NonNegativeFloat = 0.0
    """Stop when the mean |trainer - engine| log-prob of same-version tokens is above; 0 is off."""


class PrometheusConfig(Config, kw_only=True):
    """`[tracking.prometheus]`: a process beside the run answers `GET /metrics` there."""

    host: str = "127.0.0.1"
    """Address of the interface it listens on."""
    port: Port = 9464
    key_file: str = ""
    """Not empty: scrapes carry `Authorization: Bearer KEY`; needed beyond loopback."""


class ArchiveConfig(Config, kw_only=True):
    """`[archive]`: every trajectory that reached the buffer, kept to be looked at and audited."""

    enabled: bool = True
    """Write it. It never stops the run: what finds no room is counted and named."""
    conversations: bool = True
    """Keep the messages of each trajectory, not only its tokens: what a search looks through."""
    bytes_max: Annotated[int, Meta(ge=1 << 20)] = 8 << 30
    """Of all its files: three quarters for trajectories and index, one for the trainer's part."""
    full: Literal["remove_oldest", "stop"] = "remove_oldest"
    """What happens at `bytes_max`: the oldest files go, or nothing more is written."""
    waiting_bytes_max: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Of trajectories on their way to a disk that is slower than the run; more are not archived."""

    @property
    def keeps_conversations(self) -> bool:
        """Whether sessions write conversations down."""
        return self.enabled and self.conversations


class TrackingConfig(Config, kw_only=True):
    """`[tracking]`: who gets the metrics besides metrics.jsonl."""

    tensorboard: bool = True
    wandb_project: str = ""
    """Not empty: a process beside the run follows metrics.jsonl into this project of W&B."""
    mlflow_uri: str = ""
    """Not empty: the same for the MLflow server at this address."""
    prometheus: PrometheusConfig | None = None
