"""Names that other systems of the field have and this one has not, each with the reason."""

from __future__ import annotations

from typing import Final, NamedTuple


class Elsewhere(NamedTuple):
    """A name that no object of metrics.jsonl has."""

    name: str
    """`{part}` stands for words of a run's own."""
    reason: str
    """Where the number is, or why there is none."""


_NO_REFERENCE: Final = "no reference model can be configured; `train/kl_loss` is 0"
_NO_TEACHER: Final = "no teacher can be configured"
_NO_ADAPTERS: Final = "one policy is trained, without adapters"
_NO_OFFLOAD: Final = "nobody is put to sleep; `release_memory` works while no request is there"

ELSEWHERE: Final = (
    Elsewhere("rollout/response_lengths", "`multi_turn/raw_response_length/response_length_mean`"),
    Elsewhere("rollout/truncated", "`rollout/truncated_ratio`"),
    Elsewhere("rollout/rewards", "relative to its group, a reward is its `rollout/advantages`"),
    Elsewhere("rollout/returns", "without a critic they are `rollout/advantages`"),
    Elsewhere("rollout/values", "there is no critic"),
    Elsewhere("rollout/ref_log_probs", _NO_REFERENCE),
    Elsewhere("rollout/teacher_log_probs", _NO_TEACHER),
    Elsewhere("rollout/opd_reverse_kl", _NO_TEACHER),
    Elsewhere(
        "multi_turn/raw_response_length/response_length_clip_ratio",
        "an episode has several bounds: `rollout/truncated_by/{limit}`",
    ),
    Elsewhere("eval/{dataset}", "one set is held out, in two modes: `eval/{mode}/reward`"),
    Elsewhere("eval/{dataset}-truncated_ratio", "`eval/{mode}/truncated_ratio`"),
    Elsewhere(
        "eval/{dataset}-none_reward_ratio",
        "an episode without reward is in no score: `eval/{mode}/failed`",
    ),
    Elsewhere("eval/{dataset}-pass@{k}", "a held-out prompt is sampled once in each mode"),
    Elsewhere("eval/export_time_seconds", "what is measured was exported by the step's checkpoint"),
    Elsewhere("perf/ref_log_probs_time", _NO_REFERENCE),
    Elsewhere("perf/update_weights_implementation_time", "`perf/update_weights_move_time`"),
    Elsewhere("perf/finalize_and_resume_engines_time", "`perf/update_weights_activate_time`"),
    Elsewhere("perf/sleep_time", _NO_OFFLOAD),
    Elsewhere("perf/wake_up_time", _NO_OFFLOAD),
    Elsewhere("perf/fully_async/queue_length", "`rollout/fully_async/queue_size`"),
    Elsewhere("perf/fully_async/stale_dropped", "`rollout/fully_async/stale_groups_filtered`"),
    Elsewhere("perf/fully_async/batch_wait_time", "`perf/batch_wait_time`"),
    Elsewhere("perf/fully_async/batch_n_adapters", _NO_ADAPTERS),
    Elsewhere("perf/fully_async/batch_n_groups", "always `algorithm.prompts_per_step`"),
    Elsewhere("perf/fully_async/batch_n_samples", "the groups times their members"),
    Elsewhere("{adapter}/raw_reward", _NO_ADAPTERS),
)
