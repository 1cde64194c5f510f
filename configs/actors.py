"""One table for each kind of actor: `[actors.rollout]`, `[actors.engine]`, ..."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from milepost.configs.base import (
    Config,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    NonNegativeFloat32,
    Positive,
    PositiveFloat,
    PositiveFloat32,
    Processes,
    Threads,
)
from milepost.configs.sglang import SGLangConfig


class RestartConfig(Config, kw_only=True):
    """When the supervisor starts a dead actor again."""

    policy: Literal["permanent", "transient", "temporary"] = "temporary"
    """permanent: always. transient: after a failure. temporary: never, the run stops."""
    restarts_max: NonNegative = 3
    window_s: PositiveFloat = 60.0
    backoff_s: NonNegativeFloat = 0.5


class RolloutConfig(Config, kw_only=True):
    """`[actors.rollout]`"""

    trajectories_in_flight_max: Positive = 128
    """The budget: sampled trajectories issued and not yet in a complete, stored group."""
    refill: Literal["sample", "group"] = "sample"
    over_sampling_groups: NonNegative = 0
    """Groups sampled beyond what batches need, so that none waits for its slowest group: at every
    step in the synchronous mode, else at the end of the run. What misses its batch is dropped, and
    issued again if `actors.buffer.unused` is `retry`."""
    partial_rollout: bool = False
    """Synchronous mode, with over-sampling: groups that miss their batch go on under the next
    version instead, and are in the next batch."""
    episode_retries_max: NonNegative = 3
    """Attempts after the first for one trajectory whose episode failed."""
    failed: Literal["retry", "drop_group", "smaller_group"] = "retry"
    lease_s: PositiveFloat = 3900.0
    """An episode without a reply for longer is lost: taken from its agent and sampled again, as
    after any loss, up to 6 times. At least `limits.seconds_max + data.reward_deadline_s`, since
    only replies of the model renew it: not a tool that works long, nor a reward."""
    restart: RestartConfig = RestartConfig()


class AgentConfig(Config, kw_only=True):
    """`[actors.agent]`"""

    agent: str
    """`module:Class`, a subclass of `milepost.actors.agent.Agent`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the class."""
    replicas: Processes = 1
    episodes_max: Positive = 256
    """Episodes one replica runs at once."""
    reward_workers: Processes = 1
    restart: RestartConfig = RestartConfig(policy="permanent")


class TreeConfig(Config, kw_only=True):
    """`[actors.session.tree]`: of `history = "tree"`."""

    nodes_max: Positive = 1024
    """Generations of one session, all branches together."""
    tokens_max: Positive = 1 << 20
    """Tokens that the branches of one session hold; and those of the rows it delivers, where what
    branches share counts in each. Beyond either, a turn is refused."""
    leaf_picker: str = "drop_retries"
    """Which branches are trained: `drop_retries`, `keep_all`, or `module:function(leaves)`."""
    leaf_post_processor: str = "train_once"
    """Which replies each of them trains: `train_once`, or `module:function(leaves)`."""


class GuestsConfig(Config, kw_only=True):
    """`[actors.guests]`: a door for agents of other processes, languages and machines."""

    listen: str = "ipc"
    """`ipc`: this user on this machine. `tcp://HOST:PORT`: encrypted, and open only to who holds
    the invitation that the run writes; port 0 takes a free one."""
    episodes_max: Positive = 256
    """Episodes of all guests together."""
    guests_max: Positive = 64
    silence_s: PositiveFloat = 20.0
    """A guest not heard for longer is gone; its episodes are issued again."""
    reward_workers: Processes = 1
    restart: RestartConfig = RestartConfig(policy="permanent")


class HttpConfig(Config, kw_only=True):
    """`[actors.session.http]`: the HTTP door; without this table nothing listens."""

    host: str = "127.0.0.1"
    """Where it listens. Other machines reach it only if this says so."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """0: a free one, told in the session's address. Else replica N listens at `port + N`."""
    advertised_host: str = ""
    """Name in the addresses that agents get; empty: `host`."""
    free_sessions: bool = True
    """Serve `POST /sessions`: conversations that belong to no episode and are never trained."""
    key_file: str = ""
    """File whose text clients must send as bearer token or x-api-key to open such a session."""
    dropped_fields: tuple[str, ...] = ()
    """Fields of requests that are dropped, e.g. `temperature` of a harness that always sends one,
    or `tools.strict`, which each of its tools has. Without their name here they are refused unless
    they say what the run does anyway."""
    body_bytes_max: Positive = 64 << 20
    requests_max: Positive = 4096
    """Requests being answered at once; more get 503."""
    idle_s: PositiveFloat = 75.0
    """A connection without a complete header for longer is closed."""
    body_s: PositiveFloat = 60.0
    """A request whose body takes longer to arrive is cut off."""
    write_s: PositiveFloat = 60.0
    """A client that reads nothing of its answer for longer is cut off, its generation stopped."""
    connections_max: Positive = 8192
    """Open at once; one more is told so, and closed."""


class SessionConfig(Config, kw_only=True):
    """`[actors.session]`"""

    replicas: Processes = 1
    history: Literal["linear", "tree"] = "linear"
    """linear: one row, which only grows; tree: requests may branch off any earlier reply."""
    tree: TreeConfig = TreeConfig()
    matcher: str = "strict"
    sessions_max: Positive = 8192
    render_workers: Annotated[int, Meta(ge=0, le=1024)] = 1
    """Threads that render, tokenize, hash and assemble; 0 does it on the event loop."""
    template_options: dict[str, Any] = {}
    """Variables of the chat template (`enable_thinking`, ...), the same for every conversation."""
    engine_patience_s: PositiveFloat = 60.0
    """How long a turn is tried again while engines die, restart or cannot serve."""
    http: HttpConfig | None = None
    """The HTTP door."""
    restart: RestartConfig = RestartConfig(policy="permanent")


class EngineConfig(Config, kw_only=True):
    """`[actors.engine]`"""

    kind: Literal["embedded", "sglang"] = "embedded"
    replicas: Processes = 1
    device: str = "cpu"
    slots: Annotated[int, Meta(ge=1, le=1 << 16)] = 128
    """Rows of the static KV cache: running requests and retained prefixes together. SGLang gets as
    many tokens as these rows would hold, unless its options say `max-total-tokens` or
    `mem-fraction-static`."""
    running_max: Positive = 64
    """Requests decoded at once."""
    prefill_tokens_max: Positive = 8192
    """Prompt tokens computed in one forward pass."""
    requests_max: Positive = 1024
    """Requests waiting or running; more are refused by name."""
    threads: Threads = 1
    sglang: SGLangConfig = SGLangConfig()
    restart: RestartConfig = RestartConfig(policy="permanent")


class EvaluationEngineConfig(EngineConfig, kw_only=True):
    """`[actors.evaluation_engine]`: engines of their own for the evaluator, with the same keys.

    They serve held-out episodes and nothing else. The version that is to be measured is moved to
    them, and they keep it until its score is there; no engine of the rollout ever waits for that.
    """


class BufferConfig(Config, kw_only=True):
    """`[actors.buffer]`"""

    groups_max: Positive = 64
    """Complete groups held; credits never allow more."""
    max_weight_staleness: NonNegative | None = None
    """Most versions a group's oldest token may be behind the published one when it is trained."""
    staleness_policy: Literal["drop", "correct", "pace"] = "correct"
    late: Literal["drop", "retry", "correct"] = "correct"
    """`pace` only: what happens to a group that is late all the same."""
    filters: tuple[str, ...] = ()
    """`module:function(candidate) -> reason or ''`, see `milepost.Candidate`: rewards, statuses,
    lengths, metrics, versions, label and metadata; `zero_spread` and `truncated` are built in."""
    filter_deadline_s: PositiveFloat = 30.0
    """Of the filters of your own, for one group; one that takes longer ends the run by name."""
    unused: Literal["drop", "retry"] = "drop"
    journal: bool = True
    """Keep complete groups on disk until a checkpoint covers them."""
    journal_bytes_max: Positive = 4 << 30
    """Over it, the oldest groups that were trained already are forgotten before a checkpoint covers
    them; a resume issues those again."""
    restart: RestartConfig = RestartConfig()


class ScheduleConfig(Config, kw_only=True):
    """`[actors.trainer.schedule]`: learning rate over optimizer steps."""

    kind: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = "constant"
    warmup_steps: NonNegative = 0
    decay_fraction: Fraction = 0.0
    """`warmup_stable_decay`: share of all steps at the end over which lr falls to `lr_min`."""
    lr_min: NonNegativeFloat32 = 0.0


class TrainerConfig(Config, kw_only=True):
    """`[actors.trainer]`"""

    kind: Literal["fsdp"] = "fsdp"
    ranks: Processes = 1
    device: str = "cpu"
    lr: PositiveFloat32
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: PositiveFloat32 = 1e-8
    weight_decay: NonNegativeFloat32 = 0.0
    grad_norm_max: PositiveFloat32 = 1.0
    schedule: ScheduleConfig = ScheduleConfig()
    microbatch_tokens_max: Positive = 8192
    """Tokens of one packed forward and backward pass."""
    gradient_checkpointing: bool = False
    publish_every_steps: Positive = 1
    threads: Threads = 1
    restart: RestartConfig = RestartConfig()


class DeltaConfig(Config, kw_only=True):
    """`[actors.publisher.delta]`: read with transport "disk-delta" only."""

    folder: str = ""
    """Folder of all versions, shared by every host. Empty: `RUN/weights`."""
    local_folder: str = ""
    """Folder on a disk of each engine's host, for its copy. Empty: `RUN/weights_local/HOSTNAME`."""
    encoding: Literal["chunks", "xor", "overwrite"] = "chunks"
    """chunks: by measured density, in byte planes. The others any reader of the format knows."""
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128"
    workers: Threads = 2
    """Processes that encode, and threads of each host that apply."""
    keep: Positive = 16
    """Differences that are kept; then a full version takes the place of older ones."""


class PublisherConfig(Config, kw_only=True):
    """`[actors.publisher]`"""

    transport: Literal["direct", "disk-delta", "broadcast"] = "direct"
    """direct: messages and shared memory. disk-delta: what changed, over a disk that all hosts
    share. broadcast: torch.distributed, gloo on CPUs and NCCL on GPUs."""
    cuda_ipc: Literal["auto", "never", "always"] = "auto"
    """direct: engines on the trainer's own GPU copy a version out of its memory, by a handle. auto:
    those that can do, the others get bytes. always: one that cannot ends the run."""
    pause: Literal["retract", "in_place"] = "retract"
    bucket_bytes_max: Positive = 512 * 1024 * 1024
    epoch_deadline_s: PositiveFloat = 120.0
    canary: bool = True
    """After each activation, compare engine and trainer log-probs on a probe row."""
    canary_difference_max: PositiveFloat = 1e-4
    canary_turn_every: NonNegative = 8
    """Before the first version is published, and every so many after it, a turn through a session
    is compared, too: template, tokenizer, choice of engine and cache as agents meet them. 0: never.
    """
    canary_turn_s: PositiveFloat = 30.0
    """A publication waits no longer for that turn; without an answer it goes on, and says so."""
    check_weight_update_equal: bool = False
    """Fill engines with random bytes before their first version, and compare every tensor after."""
    delta: DeltaConfig = DeltaConfig()
    restart: RestartConfig = RestartConfig()


class EvaluatorConfig(Config, kw_only=True):
    """`[actors.evaluator]`"""

    prompts_max: Positive = 256
    at_start: bool = True
    at_end: bool = True
    """The last version's score is owed: what fails is tried again, and a run that ends without it
    has failed."""
    every_versions: NonNegative = 0
    """0: no evaluation in between. Else the first version published after every so many; with
    `external`, the first checkpoint."""
    overflow: Literal["backpressure", "skip"] = "backpressure"
    """What happens to a version that is due while an older one is still being measured, with
    engines of its own or `external`. backpressure: the run waits with the next version (or step)
    until this one can be taken. skip: it gets no score, and the reason is in the metrics
    (`eval/skipped_overflow`); the last version is always measured."""
    external: str = ""
    """`module:Class` of your own, which measures checkpoints by itself: no prompt, agent or engine
    of this run takes part. A subclass of `milepost.ExternalEvaluation`."""
    external_options: dict[str, Any] = {}
    """Keyword arguments of the class."""
    greedy: bool = True
    """Evaluate greedily, too."""
    sampled: bool = True
    deadline_s: PositiveFloat = 600.0
    """Of one evaluation; what has no answer by then is missing."""
    episodes_in_flight_max: Positive = 64
    """Held-out episodes run at once, beside those of the rollout actor."""
    transcripts: NonNegative = 2
    """Conversations kept for people to read."""
    restart: RestartConfig = RestartConfig()


class CustomConfig(Config, kw_only=True):
    """`[custom.NAME]`: an actor of the user's own."""

    core: str
    """`module:factory(context) -> Core`."""
    options: dict[str, Any] = {}
    replicas: Processes = 1
    significant: bool = False
    """The run ends when every significant actor reported `WorkFinished`."""
    restart: RestartConfig = RestartConfig()
