"""Metrics of how a batch was sampled, against slow and obvious formulas, by hand or by counting."""

from __future__ import annotations

from itertools import combinations, product
from statistics import fmean, median
from typing import Any

import pytest
from msgspec.structs import replace
from unit.buffer.kit import Play, group, row, settings

from milepost.actors.buffer.groups import StoredGroup, complete_group
from milepost.actors.buffer.sampled import (
    cache_metrics,
    error_categories,
    mismatch_metrics,
    pass_rates,
    response_length,
    sampling_metrics,
    speed_metrics,
    turn_metrics,
)
from milepost.configs.metrics import METRICS
from milepost.messages.buffer import GroupOpened
from milepost.messages.bulk import Bulk
from milepost.messages.shared import FinishReason
from milepost.messages.trajectory import NON_GENERATION, REPETITIVE, Trajectory, TurnBoundary


def timed(
    name: str, *members: tuple[int, float], began_s: float = 1.0, ended_s: float = 5.0
) -> StoredGroup:
    """A group whose members have (sampled tokens, seconds without generation)."""
    rows = [
        (replace(row(f"{name}.{at}", 0, tokens=tokens), metadata={NON_GENERATION: idle_s}),)
        for at, (tokens, idle_s) in enumerate(members)
    ]
    found = complete_group(name, rows)
    return StoredGroup(**{**_fields(found), "sampled_s": (began_s, ended_s)})


def _fields(found: StoredGroup) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def turn(prompt_end: int, end: int, cached: int, *, trained: bool = True) -> TurnBoundary:
    return TurnBoundary(
        prompt_end=prompt_end,
        end=end,
        finish_reason=FinishReason.STOP,
        prefix_hash="",
        engine="engine-0",
        trained=trained,
        cached_tokens=cached,
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_the_pass_rate_is_the_share_of_all_choices_of_k_that_pass(size: int) -> None:
    """Counted out over every subset: the estimate is what drawing k of the n would give."""
    for outcomes in product((0.0, 1.0), repeat=size):
        found = pass_rates([outcomes])
        sizes = [k for k in (1, 2, 4, 8) if k <= size]
        assert set(found) == {f"passrate/pass@{k}" for k in sizes}
        for k in sizes:
            chosen = [max(each) for each in combinations(outcomes, k)]
            assert found[f"passrate/pass@{k}"] == pytest.approx(fmean(chosen))


def test_partial_credit_is_no_pass_and_the_smallest_group_bounds_k() -> None:
    found = pass_rates([(1.0, 0.5, 0.0, 0.9), (0.0, 1.0)])
    assert found == {"passrate/pass@1": (0.25 + 0.5) / 2, "passrate/pass@2": (0.5 + 1.0) / 2}
    assert pass_rates([(1.0,), (0.0, 1.0)]) == {}, "one try has no chance to speak of"


def test_categories_are_shares_of_all_trajectories_whoever_names_none() -> None:
    members = [
        row("a.0", 0, metrics={"error_cat/no_answer": 1.0, "solved": 0.0}),
        row("a.1", 0, metrics={"error_cat/wrong_tool": 1.0}),
        row("a.2", 0, metrics={"error_cat/no_answer": 1.0}),
        row("a.3", 0),
    ]
    assert error_categories(members) == {
        "rollout/error_cat/no_answer": 0.5,
        "rollout/error_cat/wrong_tool": 0.25,
    }


def test_lengths_with_and_without_what_the_policy_did_not_say() -> None:
    """Tool results are part of what a row's length costs, and no part of what is trained."""
    provenance = bytes([0, 1, 1, 3, 3, 2, 2, 2, 3])
    mask = bytes(int(kind == 3) for kind in provenance)
    long = replace(
        row("a.0", 0, tokens=8),
        provenance=Bulk("uint8", (9,), provenance),
        loss_mask=Bulk("uint8", (9,), mask),
        turns=(turn(3, 5, 0), turn(8, 9, 5)),
    )
    short = replace(row("a.1", 0, tokens=2), turns=(turn(1, 3, 0),))
    assert response_length(long) == 6
    assert response_length(replace(row("a.2"), provenance=Bulk("uint8", (1,), b"\0"))) == 0
    name = "response_length/response_length"
    assert turn_metrics([complete_group("a", [(long,), (short,)])]) == {
        "rollout/total_lengths": (9 + 3) / 2,
        f"multi_turn/raw_{name}_mean": (6 + 2) / 2,
        f"multi_turn/raw_{name}_max": 6.0,
        f"multi_turn/raw_{name}_min": 2.0,
        f"multi_turn/wo_obs_{name}_mean": (3 + 2) / 2,
        f"multi_turn/wo_obs_{name}_max": 3.0,
        f"multi_turn/wo_obs_{name}_min": 2.0,
        "multi_turn/multi_turn_metric/round_number_mean": 1.5,
        "multi_turn/multi_turn_metric/round_number_max": 2.0,
        "multi_turn/multi_turn_metric/round_number_min": 1.0,
    }


def test_a_reply_that_two_rows_show_was_cached_once() -> None:
    """Branches of a tree repeat the turns before the fork; each is trained in one row alone."""
    first = replace(row("a.0", 0), turns=(turn(10, 12, 4), turn(20, 22, 11)))
    second = replace(row("a.0", 0), turns=(turn(10, 12, 4, trained=False), turn(30, 31, 9)))
    found = cache_metrics([first, second], 2)
    assert found["rollout/avg_cached_tokens_per_sample"] == (4 + 11 + 9) / 2
    assert found["rollout/prefix_cache_hit_rate"] == (4 + 11 + 9) / (10 + 20 + 30)
    assert "rollout/prefix_cache_hit_rate" not in cache_metrics([row("a.0", 0)], 1)


def test_speeds_are_of_the_time_from_the_first_group_to_the_last_trajectory() -> None:
    """The longest trajectory bounds a batch: with its tools' time, and as if they took none."""
    members = [(4, 0.5), (10, 1.0), (2, 0.0), (10, 2.0)]
    groups = [timed("a", *members[:2]), timed("b", *members[2:], began_s=2.0, ended_s=9.0)]
    idle = [each[1] for each in members]
    seconds, waited = 9.0 - 1.0, (1.0 + 2.0) / 2
    found = speed_metrics(groups, 2)
    same = {
        "tokens_per_sec": 10 / seconds,
        "non_generation_time": waited,
        "tokens_per_sec_without_non_generation": 10 / (seconds - waited),
    }
    assert found == {
        "perf/rollout_time": seconds,
        "perf/non_generation_time/mean": fmean(idle),
        "perf/non_generation_time/median": median(idle),
        "perf/non_generation_time/max": 2.0,
        "perf/non_generation_time/min": 0.0,
        "perf/effective_tokens_per_gpu_per_sec": (4 + 10 + 2 + 10) / seconds / 2,
        **{f"perf/longest_sample_{name}": value for name, value in same.items()},
        **{f"perf/longest_effective_sample_{name}": value for name, value in same.items()},
    }


def test_nothing_is_said_of_tools_where_no_time_went_into_them() -> None:
    found = speed_metrics([timed("a", (3, 0.0))], 1)
    assert set(found) == {
        "perf/rollout_time",
        "perf/effective_tokens_per_gpu_per_sec",
        "perf/longest_sample_tokens_per_sec",
        "perf/longest_effective_sample_tokens_per_sec",
    }


def test_a_group_that_a_former_incarnation_saw_begin_gives_no_rate() -> None:
    found = speed_metrics([timed("a", (3, 0.0)), group("b", 0)], 1)
    assert found == {"perf/rollout_time": 4.0}
    assert speed_metrics([group("b", 0)], 1) == {}


def test_every_name_has_a_row_of_its_own_in_the_table() -> None:
    """`rollout/{name}` would explain any of them, and explain nothing."""
    member = replace(row("a.0", 0), turns=(turn(1, 2, 1),))
    member = replace(member, metrics={"error_cat/x": 1.0}, metadata={NON_GENERATION: 0.5})
    made = complete_group("a", [(member,), (row("a.1", 0),)])
    made = StoredGroup(**{**_fields(made), "sampled_s": (1.0, 2.0)})
    names = sampling_metrics([made], "tree", 1)
    assert len(names) > 25
    rows = {name: METRICS.find(name) for name in names}
    assert [name for name, found in rows.items() if found is None] == []
    assert [name for name, found in rows.items() if found and found.name == "rollout/{name}"] == []


def test_rows_that_differ_from_their_canonical_rendering_are_told_without_being_asked() -> None:
    """Users of other systems cannot tell whether their run drifts."""
    odd = row("a.0", 0)
    kinds = ("assistant_text", "special_token_count")
    odd = replace(odd, certificate=replace(odd.certificate, mismatch_kinds=kinds))
    groups = [complete_group("a", [(odd,), (row("a.1", 0),)])]
    name = "rollout/tito_session_mismatch_rate"
    metrics = mismatch_metrics(groups, "linear")
    assert metrics[f"{name}/v1"] == 0.5
    assert metrics[f"{name}/v1/assistant_text"] == 0.5
    assert metrics[f"{name}/v1/special_token_count"] == 0.5
    assert metrics[f"{name}/v1/non_assistant_text"] == 0.0
    assert f"{name}/v2" in mismatch_metrics(groups, "tree")


def test_a_trajectory_that_repeats_itself_in_any_row_counts_once() -> None:
    def rows(name: str, repetitive: list[bool]) -> tuple[Trajectory, ...]:
        return tuple(
            replace(row(name, 0), row=at, num_rows=len(repetitive), metadata={REPETITIVE: each})
            for at, each in enumerate(repetitive)
        )

    members = [rows("a.0", [False, True, True]), rows("a.1", [False])]
    found = sampling_metrics([complete_group("a", members), group("b", 0)], "linear", 1)
    assert found["rollout/repetition_frac"] == 0.25
    assert "perf/rollout_time" not in found, "a former incarnation heard them"


def test_the_time_of_a_batch_is_from_its_first_group_to_its_last_member() -> None:
    """Groups overlap: their times are not added up."""
    play = Play(settings())
    for name, now_s in (("a", 1.0), ("b", 3.0)):
        play.now_s = now_s
        play.hear(GroupOpened(group_id=name, prompt_id="p", size=2))
    for name, now_s in (("a.0", 4.0), ("b.0", 5.0), ("b.1", 6.5), ("a.1", 9.25)):
        play.now_s = now_s
        play.deliver(row(name, 0, reward=float(name[-1])))
    play.now_s = 20.0
    metrics = play.batch(play.request(0)).metrics
    assert metrics["perf/rollout_time"] == 8.25
    assert metrics["rollout/repetition_frac"] == 0.0
