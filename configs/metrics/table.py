"""The table itself. Names that other systems have, too, are theirs, so that dashboards go on."""

from __future__ import annotations

from typing import Final

from milepost.configs.metrics.metric import Metric, Metrics

_LENGTHS: Final = (
    Metric("rollout/response_len/mean", "tokens", "sampled tokens of a trajectory, mean"),
    Metric("rollout/response_len/median", "tokens", "the same, median"),
    Metric("rollout/response_len/max", "tokens", "the same, longest"),
    Metric("rollout/response_len/min", "tokens", "the same, shortest"),
)

_ROLLOUT: Final = (
    Metric("rollout/step", "steps", "batches trained before this one"),
    Metric("rollout/raw_reward", "1", "reward of the trained trajectories, mean"),
    Metric("rollout/truncated_ratio", "1", "share of them that a limit cut off"),
    Metric("rollout/truncated_by/{limit}", "1", "share of them that this limit cut off"),
    *_LENGTHS,
    Metric(
        "rollout/repetition_frac",
        "1",
        "share of them that repeat themselves: zlib shortens the last 10,000 sampled characters "
        "to less than a tenth",
    ),
    Metric("rollout/zero_std/ratio", "1", "share of groups whose rewards are all the same"),
    Metric("rollout/zero_std/all_zero_percentage", "1", "share of groups with reward 0 only"),
    Metric("rollout/zero_std/all_one_percentage", "1", "share of groups with reward 1 only"),
    Metric("rollout/zero_std/count_{reward}", "groups", "groups in which all have this reward"),
    Metric("rollout/dynamic_filter/drop_{reason}", "groups", "dropped by a filter, by reason"),
    Metric("rollout/error_cat/{category}", "1", "share in this category, as agents report it"),
    Metric("rollout/prefix_cache_hit_rate", "1", "prompt tokens found in the engines' KV cache"),
    Metric("rollout/avg_cached_tokens_per_sample", "tokens", "the same of a trajectory, mean"),
    Metric("rollout/spec_accept_rate", "1", "share of drafted tokens that were accepted (SGLang)"),
    Metric("rollout/spec_accept_length", "tokens", "sampled by a pass that judges drafts (SGLang)"),
    Metric("rollout/total_lengths", "tokens", "of a row, mean"),
    Metric("rollout/rows_per_trajectory", "rows", "rows that a tree of a conversation gives"),
    Metric(
        "rollout/tito_session_mismatch_rate/{history}",
        "1",
        "share of rows whose tokens differ from the canonical rendering; v1 linear, v2 tree",
    ),
    Metric(
        "rollout/tito_session_mismatch_rate/{history}/special_token_count",
        "1",
        "of these, other special tokens in number: a broken template or seam",
    ),
    Metric(
        "rollout/tito_session_mismatch_rate/{history}/special_token_type",
        "1",
        "of these, other special tokens in kind: a broken template or seam",
    ),
    Metric(
        "rollout/tito_session_mismatch_rate/{history}/non_assistant_text",
        "1",
        "of these, text that nobody sampled differs: a broken template or seam",
    ),
    Metric(
        "rollout/tito_session_mismatch_rate/{history}/assistant_text",
        "1",
        "of these, sampled text would be tokenized otherwise: expected, and why ids are kept",
    ),
    Metric("rollout/waste/{account}_tokens", "tokens", "sampled and not trained, by account"),
    Metric("rollout/log_probs", "nats", "trainer's log-prob of a token: mean of each row, mean"),
    Metric("rollout/rollout_log_probs", "nats", "the engine's, likewise"),
    Metric("rollout/entropy", "nats", "entropy of the policy at a token, likewise"),
    Metric("rollout/advantages", "1", "advantage of a token, likewise"),
    Metric("rollout/{name}", "1", "an agent's own number, such as `solved`; mean"),
)

_TURNS: Final = (
    Metric(
        "passrate/pass@{k}",
        "1",
        "chance that one of k trajectories of a prompt has reward 1; 1 - C(n - c, k) / C(n, k) of "
        "a group of n with c such, mean",
    ),
    *(
        Metric(
            f"multi_turn/{name}_{which}", unit, meaning if which == "mean" else f"the same, {what}"
        )
        for name, unit, meaning in (
            (
                "raw_response_length/response_length",
                "tokens",
                "of a row behind its first prompt, mean",
            ),
            ("wo_obs_response_length/response_length", "tokens", "of it, with loss, mean"),
            ("multi_turn_metric/round_number", "replies", "of a row, mean"),
        )
        for which, what in (("mean", ""), ("max", "most"), ("min", "least"))
    ),
)

_VERSIONS: Final = (
    Metric("rollout/weight_version/mean", "version", "oldest version of a trajectory, mean"),
    Metric("rollout/weight_version/median", "version", "the same, median"),
    Metric("rollout/weight_version/max", "version", "the same, newest"),
    Metric("rollout/weight_version/min", "version", "the same, oldest"),
    Metric("rollout/weight_version/mixed_version_ratio", "1", "share with several versions"),
    Metric("rollout/weight_version/sample_coverage", "1", "share with a known version"),
    Metric("rollout/staleness/s_old_mean", "versions", "S_old: age of the oldest token, mean"),
    Metric("rollout/staleness/s_old_max", "versions", "S_old, largest"),
    Metric("rollout/staleness/s_post_mean", "versions", "S_post: age of the newest token, mean"),
    Metric("rollout/staleness/delta_gen_mean", "versions", "published while it was sampled, mean"),
    Metric("rollout/staleness/token_weighted", "versions", "age of a token, mean over tokens"),
    Metric("rollout/fully_async/queue_size", "groups", "left in the buffer behind this batch"),
    Metric("rollout/fully_async/avg_staleness", "versions", "S_old of its groups, mean"),
    Metric("rollout/fully_async/max_staleness", "versions", "S_old of its groups, largest"),
    Metric("rollout/fully_async/buffer_avg_staleness", "versions", "S_old of those left, mean"),
    Metric("rollout/fully_async/buffer_max_staleness", "versions", "S_old of those left, largest"),
    Metric("rollout/fully_async/stale_groups_filtered", "groups", "dropped for their age"),
    Metric("rollout/fully_async/aborted_groups_filtered", "groups", "given up incomplete"),
    Metric("rollout/fully_async/dropped_avg_staleness", "versions", "S_old of the dropped, mean"),
    Metric("rollout/fully_async/dropped_max_staleness", "versions", "the same, largest"),
)

_TRAIN: Final = (
    Metric("train/step", "steps", "batches trained before this one"),
    Metric("train/version", "version", "batches trained after it: the version it made"),
    Metric("train/optimizer_step", "steps", "optimizer steps since the start of the policy"),
    Metric("train/loss", "nats", "the loss, mean over the minibatches"),
    Metric("train/pg_loss", "nats", "its policy-gradient part"),
    Metric("train/entropy_loss", "nats", "its entropy part, before the coefficient"),
    Metric("train/kl_loss", "nats", "its part that holds the policy at the reference"),
    Metric("train/nll", "nats", "negative log-likelihood of a token (SFT)"),
    Metric("train/loss_tokens", "tokens", "tokens with loss"),
    Metric("train/entropy", "nats", "entropy of the policy at a token, mean"),
    Metric("train/pg_clipfrac", "1", "share of tokens whose ratio was clipped"),
    Metric("train/ppo_kl", "nats", "old minus new log-prob of a token, mean"),
    Metric("train/ois", "1", "importance ratio of a token, mean; 1 when on policy"),
    Metric("train/ess_ratio", "1", "effective sample size of a trajectory's tokens, share"),
    Metric("train/tis", "1", "trainer's over engine's probability of a token, mean"),
    Metric("train/tis_abs", "1", "its distance from 1, mean"),
    Metric("train/tis_clipfrac", "1", "share of tokens whose correction was bounded"),
    Metric(
        "train/train_rollout_logprob_abs_diff", "nats", "|trainer - engine| log-prob, mean (C3)"
    ),
    Metric("train/train_rollout_logprob_abs_diff_max", "nats", "the same, largest (C3)"),
    Metric(
        "train/train_rollout_logprob_abs_diff_same_version",
        "nats",
        "the same over tokens of the very version that is trained (C3): numerics alone",
    ),
    Metric(
        "train/route_mismatch_ratio",
        "1",
        "share of (token, mixture layer) pairs whose replayed experts the trainer would not have "
        "chosen (C2)",
    ),
    Metric("train/same_version_ratio", "1", "share of tokens sampled by that version"),
    Metric("train/train_rollout_kl", "nats", "KL(engine || trainer), k3 estimate"),
    Metric("train/staleness/mean", "versions", "age of a token when it is trained, mean"),
    Metric("train/staleness/max", "versions", "the same, largest"),
    Metric("train/advantage_abs", "1", "absolute advantage of a token, mean"),
    Metric("train/grad_norm", "1", "gradient norm before clipping"),
    Metric("train/lr-pg_0", "1", "learning rate"),
    Metric("train/refused_groups", "groups", "refused by the trainer's door so far"),
)

_EVAL: Final = (
    Metric("eval/step", "version", "the version that was measured"),
    Metric("eval/duration_seconds", "s", "from the first prompt to the last verdict"),
    Metric("eval/delay_seconds", "s", "from the publication of the version to the score"),
    Metric("eval/lag_steps", "versions", "published, or saved, between the version and its score"),
    Metric("eval/skipped_{reason}", "versions", "due and not measured, by reason; always 1"),
    Metric("eval/external/{name}", "1", "what your own evaluation of the checkpoint gave"),
    Metric("eval/{mode}/reward", "1", "reward on the held-out prompts, mean"),
    Metric("eval/{mode}/episodes", "episodes", "scored"),
    Metric("eval/{mode}/failed", "episodes", "failed, and in no score"),
    Metric("eval/{mode}/mixed", "episodes", "with tokens of other versions, and in no score"),
    Metric("eval/{mode}/missing", "episodes", "out of time, and in no score"),
    Metric("eval/{mode}/truncated_ratio", "1", "share that a limit cut off"),
    Metric("eval/{mode}/{name}", "1", "an agent's own number, such as `solved`; mean"),
)

_PERF: Final = (
    Metric("perf/rollout_time", "s", "from the first group of a batch begun to its last episode"),
    Metric(
        "perf/non_generation_time/mean",
        "s",
        "from a trajectory's replies to its next requests, in all; mean",
    ),
    Metric("perf/non_generation_time/median", "s", "the same, median"),
    Metric("perf/non_generation_time/max", "s", "the same, longest"),
    Metric("perf/non_generation_time/min", "s", "the same, shortest"),
    Metric(
        "perf/effective_tokens_per_gpu_per_sec",
        "tokens/s",
        "with loss, of the batch, over its rollout_time and the engines",
    ),
    *(
        Metric(f"perf/longest_{kind}sample_{name}", unit, meaning.format(what))
        for kind, what in (("", "behind its first prompt"), ("effective_", "with loss"))
        for name, unit, meaning in (
            ("tokens_per_sec", "tokens/s", "tokens {} of the longest row, over rollout_time"),
            ("non_generation_time", "s", "the non_generation_time of that row"),
            (
                "tokens_per_sec_without_non_generation",
                "tokens/s",
                "tokens {} of that row, over the rest of rollout_time",
            ),
        )
    ),
    Metric("perf/step_time", "s", "from the end of one step to the end of the next"),
    Metric("perf/train_time", "s", "of it, training"),
    Metric("perf/train_wait_time", "s", "of it, waiting for a batch"),
    Metric("perf/wait_time_ratio", "1", "share of the step that was waited"),
    Metric("perf/batch_wait_time", "s", "from the request for the batch to the batch"),
    Metric("perf/data_preprocess_time", "s", "laying the rows of the batch out for the device"),
    Metric("perf/log_probs_time", "s", "recomputing the log-probs of the old policy"),
    Metric(
        "perf/log_probs_tflops", "TFLOP/s", "of a rank meanwhile, where anything was recomputed"
    ),
    Metric("perf/actor_train_time", "s", "forward, backward and optimizer"),
    Metric("perf/actor_train_tok_per_s", "tokens/s", "trained, all ranks"),
    Metric(
        "perf/actor_train_tflops", "TFLOP/s", "of a rank: 3 forward passes over actor_train_time"
    ),
    Metric("perf/mfu_peak_tflops", "TFLOP/s", "the device's best in bfloat16, if it is known"),
    Metric("perf/actor_train_mfu", "1", "actor_train_tflops over that"),
    Metric("perf/tokens", "tokens", "of all rows of the batch"),
    Metric("perf/export_time", "s", "writing the weights out for the engines"),
    Metric("perf/save_model_time", "s", "writing the checkpoint"),
    Metric(
        "perf/tokens_per_gpu_per_sec",
        "tokens/s",
        "sampled by an engine, mean over the engines that training samples with",
    ),
    Metric("perf/update_weights_version", "version", "what the other figures of it are of"),
    Metric("perf/update_weights_time", "s", "one publication, from first to last word"),
    Metric("perf/update_weights_prepare_time", "s", "of it, until all engines were prepared"),
    Metric("perf/update_weights_move_time", "s", "of it, moving the weights"),
    Metric("perf/update_weights_hold_time", "s", "of it, waiting for a hold to end"),
    Metric("perf/update_weights_activate_time", "s", "of it, switching all engines"),
    Metric("perf/update_weights_pause_time", "s", "longest pause of an engine's generation"),
    Metric("perf/update_weights_wire_bytes", "bytes", "weights sent in bytes, all engines"),
    Metric("perf/update_weights_cuda_ipc_bytes", "bytes", "weights copied within the GPU instead"),
    Metric("perf/update_weights_density", "1", "share of weights that changed (disk-delta)"),
    Metric("perf/update_weights_encode_cpu_time", "s", "processor time of the encoder"),
    Metric("perf/evaluation_engines/{name}", "1", "the same figures, for the evaluator's engines"),
    Metric("perf/update_weights_skipped", "versions", "given up for a newer one so far"),
    Metric("perf/canary_logprob_difference", "nats", "probe: |engine - trainer| log-prob, largest"),
    Metric("perf/canary_turn_logprob_difference", "nats", "the same for a turn through a session"),
    Metric("perf/canary_turn_time", "s", "of a publication, waiting for that turn"),
    Metric("perf/canary_turn_missed", "turns", "that had no answer so far"),
    Metric("perf/cpu_memory_actors_gb", "GiB", "resident memory of all actors"),
)

_SYSTEM: Final = (
    Metric("system/{kind}/memory_gib", "GiB", "resident memory of the actors of a kind"),
    Metric("system/{kind}/cores", "cores", "processor cores that they keep busy"),
    Metric("system/{kind}/gpu_memory_gib", "GiB", "used on their GPUs, by whomever"),
    Metric("system/{kind}/gpu_utilization", "1", "share of time that a kernel ran, mean of GPUs"),
)

METRICS: Final = Metrics(*_ROLLOUT, *_TURNS, *_VERSIONS, *_TRAIN, *_EVAL, *_PERF, *_SYSTEM)
