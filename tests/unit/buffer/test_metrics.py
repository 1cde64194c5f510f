"""The metrics of a batch, by the names that dashboards know and by numbers done by hand."""

from __future__ import annotations

from msgspec.structs import replace
from unit.buffer.kit import Play, group, row, settings

from milepost.actors.buffer.candidates import Candidate
from milepost.actors.buffer.filters import load_filters
from milepost.actors.buffer.groups import About, complete_group
from milepost.actors.buffer.metrics import (
    batch_metrics,
    is_flat,
    queue_metrics,
    version_metrics,
)
from milepost.actors.buffer.split import split_batch
from milepost.messages.buffer import StepTrained, TokensAccounted
from milepost.messages.shared import Status
from milepost.messages.trainer import VersionPublished

UNSOLVED = {"solved": 0.0}


def test_rewards_lengths_and_success() -> None:
    mixed = complete_group(
        "a",
        [
            (row("a.0", 0, reward=1.0, tokens=4, metrics={"solved": 1.0}),),
            (row("a.1", 0, reward=0.5, tokens=2, status=Status.TRUNCATED, metrics=UNSOLVED),),
        ],
    )
    metrics = batch_metrics([mixed, group("b", 0, rewards=(0.0, 0.0))], "solved")
    assert metrics["rollout/raw_reward"] == 0.375
    assert metrics["rollout/response_len/mean"] == 2.0
    assert metrics["rollout/response_len/max"] == 4.0
    assert metrics["rollout/truncated_ratio"] == 0.25
    assert metrics["rollout/solved"] == 0.5
    assert metrics["rollout/zero_std/ratio"] == 0.5
    assert metrics["rollout/zero_std/count_0"] == 1.0
    assert metrics["rollout/zero_std/all_zero_percentage"] == 0.5
    assert metrics["rollout/zero_std/all_one_percentage"] == 0.0


def test_each_limit_has_a_share_of_its_own() -> None:
    """An episode out of time, out of turns and out of tokens are three different troubles."""
    limits = ("turns_max", "seconds_max", "turns_max")
    members = [
        (replace(row(f"a.{index}", 0, status=Status.TRUNCATED), metadata={"limit": limit}),)
        for index, limit in enumerate(limits)
    ]
    metrics = batch_metrics([complete_group("a", [*members, (row("a.3", 0),)])], "solved")
    assert metrics["rollout/truncated_ratio"] == 0.75
    assert metrics["rollout/truncated_by/turns_max"] == 0.5
    assert metrics["rollout/truncated_by/seconds_max"] == 0.25


def test_a_member_of_several_rows_counts_once() -> None:
    """A session that branched weighs no more in the statistics than one that did not."""
    rows = tuple(
        replace(row("a.0", 0, reward=1.0, tokens=2), row=number, num_rows=3) for number in range(3)
    )
    branched = complete_group("a", [(row("a.1", 0, reward=0.0, tokens=4),), rows])
    assert branched.rewards == (1.0, 0.0)
    assert [each.group_rewards for each in branched.trajectories] == [(1.0, 0.0)] * 4
    assert [(each.trajectory_id, each.row) for each in branched.trajectories] == [
        ("a.0", 0), ("a.0", 1), ("a.0", 2), ("a.1", 0),
    ]  # fmt: skip
    metrics = batch_metrics([branched], "solved")
    assert metrics["rollout/raw_reward"] == 0.5
    assert metrics["rollout/response_len/mean"] == (6 + 4) / 2
    parts = split_batch([branched], 1, 2)
    assert sorted(piece.trajectory.row for part in parts for piece in part) == [0, 0, 1, 2]


def test_a_member_is_truncated_where_any_of_its_rows_is() -> None:
    """Which of its branches a bound ends is chance; the first one is no better than the others."""
    cut = {"status": Status.TRUNCATED, "metadata": {"limit": "turns_max"}}
    rows = tuple(
        replace(row("a.0", 0), row=number, num_rows=2, **(cut if number else {}))
        for number in range(2)
    )
    branched = complete_group("a", [rows, (row("a.1", 0),)])
    metrics = batch_metrics([branched], "solved")
    assert metrics["rollout/truncated_ratio"] == 0.5
    assert metrics["rollout/truncated_by/turns_max"] == 0.5
    seen = Candidate.of(branched, About(), None)
    assert seen.statuses == (Status.TRUNCATED, Status.COMPLETED)


def test_no_success_is_reported_when_no_agent_said_anything_about_it() -> None:
    assert "rollout/solved" not in batch_metrics([group("a", 0)], "solved")


def test_a_group_of_one_is_not_flat() -> None:
    """Imported conversations have no siblings to differ from."""
    assert not is_flat([0.0])
    assert is_flat([1.0, 1.0])


def test_versions_of_a_batch() -> None:
    metrics = version_metrics([group("a", 3), group("b", 3, 5)], 6)
    assert metrics["rollout/weight_version/sample_coverage"] == 1.0
    assert metrics["rollout/weight_version/mean"] == 3.0
    assert metrics["rollout/weight_version/mixed_version_ratio"] == 0.5
    assert metrics["rollout/staleness/s_old_mean"] == 3.0
    assert metrics["rollout/staleness/s_post_mean"] == 2.0
    assert metrics["rollout/staleness/delta_gen_mean"] == 1.0
    assert abs(metrics["rollout/staleness/token_weighted"] - (2 * 3 + 4 * 2) / 6) < 1e-9


def test_coverage_says_how_much_the_ages_speak_of() -> None:
    half = complete_group("a", [(row("a.0", 2),), (row("a.1"),)])
    assert version_metrics([half], 2)["rollout/weight_version/sample_coverage"] == 0.5


def test_the_queue_is_told_apart_from_what_left_it() -> None:
    metrics = queue_metrics([group("a", 2)], [group("b", 4), group("c", 0)], 4)
    assert metrics["rollout/fully_async/queue_size"] == 2.0
    assert metrics["rollout/fully_async/avg_staleness"] == 2.0
    assert metrics["rollout/fully_async/buffer_avg_staleness"] == 2.0
    assert metrics["rollout/fully_async/buffer_max_staleness"] == 4.0


def test_each_token_that_came_is_trained_dropped_or_held() -> None:
    """The waste statement is closed: nothing is in two accounts, nothing in none."""
    play = Play(settings(staleness_max=0, late="drop", filters=load_filters(("zero_spread",))))
    play.hear(VersionPublished(version=0), "publisher")
    for name in ("g0", "g1", "g2"):
        play.put(name)
    play.put("flat", rewards=(1.0, 1.0))
    play.hear(TokensAccounted(tokens={"abandoned": 7}), "session-0")
    names = play.batch(play.request(0)).group_ids
    assert play.core.statistics()["tokens_held"] == 6
    play.hear(StepTrained(step=0, version=1, group_ids=names), "trainer-0")
    play.hear(StepTrained(step=0, version=1, group_ids=names), "trainer-0")
    play.hear(VersionPublished(version=1), "publisher")
    statistics = play.core.statistics()
    assert statistics["tokens_held"] == 0
    assert statistics["tokens_by_account"] == {
        "trained": 4,
        "filtered_zero_spread": 2,
        "dropped_stale": 2,
        "abandoned": 7,
    }


def test_the_ages_of_what_was_dropped_for_its_age_are_told() -> None:
    play = Play(settings(staleness_max=0, late="drop"))
    play.hear(VersionPublished(version=2), "publisher")
    play.put("g0", 0)
    play.put("g1", 1)
    waiting = play.request(0)
    play.put("g2", 2)
    play.put("g3", 2)
    metrics = play.batch(waiting).metrics
    assert metrics["rollout/fully_async/stale_groups_filtered"] == 2
    assert metrics["rollout/fully_async/dropped_avg_staleness"] == 1.5
    assert metrics["rollout/fully_async/dropped_max_staleness"] == 2
