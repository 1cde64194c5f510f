"""One table says what every metric is; nothing is said that it does not know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from milepost.configs.metrics import ELSEWHERE, METRICS, Metric, Metrics

ROOT: Final = Path(__file__).parents[3]
HEADS: Final = ("rollout/", "train/", "perf/", "eval/", "system/", "passrate/", "multi_turn/")


def strings() -> Iterator[tuple[Path, str]]:
    """Whole words of the program that look like the name of a metric."""
    for room in ("actors", "supervisor"):
        for path in (ROOT / room).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
            # Pieces of a name that is put together; the runs of tests/proc/system look at those.
            pieces = {id(piece) for node in formatted for piece in node.values}
            for node in nodes:
                match node:
                    case ast.Constant(value=str(text)) if (
                        text.startswith(HEADS) and id(node) not in pieces
                    ):
                        if " " not in text and not text.endswith("/"):
                            yield path, text


def test_every_name_that_the_program_writes_is_in_the_table() -> None:
    """Who adds a metric says what it means. A name that others are made of counts, too."""
    written = {metric.name for metric in METRICS} | {"rollout/solved"}  # an agent's own
    unknown = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in strings()
        if name not in written and not any(each.startswith(f"{name}/") for each in written)
    ]
    assert unknown == []


def test_a_name_with_parts_is_found_and_taken_apart() -> None:
    found = METRICS.find("rollout/zero_std/count_0.5")
    assert found is not None
    assert (found.name, found.unit) == ("rollout/zero_std/count_{reward}", "groups")
    assert found.parts("rollout/zero_std/count_0.5") == {"reward": "0.5"}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("eval/sampled/reward", "eval/{mode}/reward"),
        ("eval/sampled/solved", "eval/{mode}/{name}"),
        ("rollout/solved", "rollout/{name}"),
        ("rollout/raw_reward", "rollout/raw_reward"),
        ("rollout/raw_reward@trainer-1", "rollout/raw_reward"),
        (
            "rollout/tito_session_mismatch_rate/v1/assistant_text",
            "rollout/tito_session_mismatch_rate/{history}/assistant_text",
        ),
        ("passrate/pass@4", "passrate/pass@{k}"),
        ("passrate/pass@4@buffer", "passrate/pass@{k}"),
        ("loss", None),
        ("perf/nothing", None),
    ],
)
def test_the_closest_row_is_the_one(name: str, row: str | None) -> None:
    found = METRICS.find(name)
    assert (found and found.name) == row


def test_the_source_of_a_name_is_told_from_an_at_sign_of_its_own() -> None:
    assert METRICS.split("passrate/pass@4")[1:] == ("passrate/pass@4", "")
    assert METRICS.split("passrate/pass@4@7")[1:] == ("passrate/pass@4", "7")
    assert METRICS.split("train/loss@trainer-1")[1:] == ("train/loss", "trainer-1")
    assert METRICS.split("my/own@buffer") == (None, "my/own", "buffer")


def expanded(text: str) -> list[str]:
    """`a/{b,c}_d` as a/b_d and a/c_d; other parts in braces stay."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if found is None:
        return [text]
    words = found[1].split(",")
    return [name for word in words for name in expanded(text.replace(found[0], word, 1))]


FIELD: Final = """
rollout/response_len/{mean,median,max,min} rollout/zero_std/count_{r}
rollout/zero_std/{all_zero,all_one}_percentage rollout/spec_accept_{rate,length}
rollout/{prefix_cache_hit_rate,avg_cached_tokens_per_sample,repetition_frac,truncated_ratio}
rollout/error_cat/{cat} rollout/weight_version/{mean,median,max,min,mixed_version_ratio}
rollout/tito_session_mismatch_rate/{v} rollout/tito_session_mismatch_rate/{v}/assistant_text
rollout/dynamic_filter/drop_{reason} rollout/fully_async/queue_size
rollout/{log_probs,ref_log_probs,rollout_log_probs,returns,advantages,values,teacher_log_probs}
rollout/{opd_reverse_kl,entropy,rewards,raw_reward,response_lengths,total_lengths,truncated}
multi_turn/{raw,wo_obs}_response_length/response_length_{mean,max,min}
multi_turn/raw_response_length/response_length_clip_ratio
multi_turn/multi_turn_metric/round_number_{mean,max,min} passrate/pass@{1,2,4}
eval/{dataset} eval/{dataset}-{truncated_ratio,none_reward_ratio} eval/{dataset}-pass@{k}
eval/{lag_steps,duration_seconds,export_time_seconds} eval/skipped_{reason}
perf/{rollout_time,step_time,wait_time_ratio,tokens_per_gpu_per_sec}
perf/non_generation_time/{mean,median,max,min} perf/effective_tokens_per_gpu_per_sec
perf/longest_{,effective_}sample_tokens_per_sec{,_without_non_generation}
perf/longest_{,effective_}sample_non_generation_time
perf/{train,train_wait,actor_train,log_probs,ref_log_probs,data_preprocess,update_weights}_time
perf/{update_weights_implementation,finalize_and_resume_engines,sleep,wake_up,save_model}_time
perf/{log_probs_tflops,actor_train_tflops,actor_train_tok_per_s,mfu_peak_tflops,actor_train_mfu}
perf/cpu_memory_actors_gb perf/update_weights_{density,wire_bytes}
perf/fully_async/{queue_length,stale_dropped,batch_wait_time}
perf/fully_async/batch_n_{adapters,groups,samples} {adapter}/raw_reward
rollout/step eval/step train/step
"""
"""Names that dashboards of the field ask for; `{word}` is a part that only a run knows."""


def test_every_name_of_the_field_is_written_or_said_to_be_elsewhere() -> None:
    """A person who comes with a dashboard finds each of its names on the page."""
    general = {"rollout/{name}", "eval/{mode}/{name}"}
    written = [metric for metric in METRICS if metric.name not in general]
    elsewhere = {each.name for each in ELSEWHERE}
    names = [name for text in FIELD.split() for name in expanded(text)]
    assert len(names) > 100
    missing = [
        name
        for name in names
        if name not in elsewhere and not any(each.pattern.fullmatch(name) for each in written)
    ]
    assert missing == []


def test_no_name_is_both_written_and_elsewhere() -> None:
    written = {metric.name for metric in METRICS}
    assert [each.name for each in ELSEWHERE if each.name in written] == []
    assert all(each.reason for each in ELSEWHERE)


def test_what_elsewhere_points_to_is_written() -> None:
    pointed = {
        name
        for each in ELSEWHERE
        for name in re.findall(r"`([^`]+)`", each.reason)
        if name.startswith(HEADS)
    }
    assert pointed
    assert [name for name in pointed if METRICS.find(name) is None] == []


def test_a_name_stands_once() -> None:
    with pytest.raises(AssertionError, match="named twice"):
        Metrics(Metric("a", "1", "x"), Metric("a", "1", "y"))
