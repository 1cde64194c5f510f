"""The sentences of the report: they must say what the numbers say, also when it is not nice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.launch.report import report_lines
from milepost.launch.report.page import page, tiles
from milepost.launch.report.record import Record, read_record
from milepost.launch.report.words import (
    changes,
    headline,
    num_prompts,
    places,
    table,
    text_table,
    unscored,
)


def recorded(folder: Path, *evaluations: dict[str, Any]) -> Record:
    lines = [
        {"time": 1.0, "source": "evaluator", "kind": "evaluation", "text": "", "values": values}
        for values in evaluations
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return read_record(folder)


def evaluation(version: int, sampled: float | None, greedy: float | None) -> dict[str, Any]:
    def score(success: float | None) -> dict[str, Any] | None:
        if success is None:
            return None
        return {"num_episodes": 10, "success": success, "reward": success}

    values = {"sampled": score(sampled), "greedy": score(greedy)}
    return {"version": version, "seconds": 1.0, **values}


def test_a_resumed_run_says_what_its_seconds_are_of(run_folder: Path) -> None:
    """The steps are of all its lives, and the time of the last one alone."""
    path = run_folder / "summary.json"
    told = json.loads(path.read_text())
    assert headline(read_record(run_folder)) == "lookup: 80 steps in 33 s, done"
    path.write_text(json.dumps({**told, "resumed_from": 40}))
    record = read_record(run_folder)
    said = "lookup: 80 steps, done; 33 s since it was resumed from step 40"
    assert headline(record) == said
    assert tiles(record)[-1] == ("wall time", "33 s", "resumed from step 40")
    assert "Wall time since it was resumed from step 40" in page(record, (), ())
    path.write_text(json.dumps({**told, "resumed_from": 0}))
    assert headline(read_record(run_folder)) == "lookup: 80 steps in 33 s, done", "it began again"


def test_the_table_shows_both_ways_by_category(run_folder: Path) -> None:
    lines = list(text_table(read_record(run_folder)))
    assert lines[0].split() == ["held-out", "prompts", "(256)", "before", "after"]
    assert lines[1].split() == ["solved,", "sampled", "0.113", "0.965"]
    assert lines[2].split() == ["1", "hop", "0.210", "0.980"]
    assert len(lines) == 11
    assert len({line.index(line.split()[-1]) + 5 for line in lines}) == 1, "one right margin"


def test_it_says_that_the_way_was_known_when_greedy_was_right_already(run_folder: Path) -> None:
    """The honest note: sampling got reliable, the likeliest action was right from the start."""
    sampled, greedy = changes(read_record(run_folder))
    assert "rose from 11.3% to 96.5%" in sampled
    assert "92.6% before and 100.0% after" in greedy
    assert "did not teach a new way" in greedy


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.1, 0.3), (0.9, 0.95), ["rose from 10.0% to 90.0%", "turned it around"]),
        ((0.5, 0.9), (0.51, 0.91), ["about as much as before", "90.0% before and 91.0% after."]),
        ((0.5, 0.9), (0.2, 0.6), ["FELL from 50.0% to 20.0%", "there it did worse"]),
        ((0.16, 0.95), (0.6, 0.62), ["rose from 16.0% to 60.0%", "there it did worse"]),
        ((0.1, None), (0.9, None), ["rose from 10.0% to 90.0%"]),
    ],
)
def test_each_outcome_has_its_own_words(
    run_folder: Path,
    before: tuple[float, float | None],
    after: tuple[float, float | None],
    words: list[str],
) -> None:
    record = recorded(run_folder, evaluation(0, *before), evaluation(40, *after))
    said = list(changes(record))
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))
    assert "In 40 steps" in said[0] or "After 40 steps" in said[0]


def test_without_a_success_metric_it_speaks_of_reward(run_folder: Path) -> None:
    values = [
        {"version": v, "seconds": 1.0, "sampled": {"num_episodes": 5, "reward": r}}
        for v, r in ((0, 0.25), (8, 0.5))
    ]
    record = recorded(run_folder, *values)
    assert list(changes(record)) == [
        "Mean reward on held-out prompts went from 0.250 to 0.500 in 8 steps."
    ]
    assert [row.name for row in table(record)] == ["reward, sampled"]


def test_a_run_stopped_before_its_last_evaluation_claims_no_change(run_folder: Path) -> None:
    record = recorded(run_folder, evaluation(0, 0.1, 0.9))
    (said,) = changes(record)
    assert said.startswith("There are not two evaluations")
    assert [(row.before, row.after) for row in table(record)] == [
        (0.1, None),
        (0.1, None),
        (0.9, None),
        (0.9, None),
    ]


def test_a_single_score_of_a_trained_version_is_no_score_before(run_folder: Path) -> None:
    """A run without an evaluation at its start must not show its end as its beginning."""
    record = recorded(run_folder, evaluation(40, 0.5, None))
    assert record.before is None
    assert [(row.before, row.after) for row in table(record)] == [(None, 0.5), (None, 0.5)]


def test_scores_on_different_prompts_are_told_apart(run_folder: Path) -> None:
    """Somebody resumed with more held-out prompts: the two columns are not of the same set."""
    old, new = evaluation(0, 0.5, 0.5), evaluation(9, 0.9, 0.9)
    new["sampled"]["num_episodes"] = new["greedy"]["num_episodes"] = 20
    assert num_prompts(recorded(run_folder, old, new)) == "10 before, 20 after"


def test_episodes_without_a_score_are_told(run_folder: Path) -> None:
    """A mean over the episodes that happened to work is not a mean over the prompts."""
    old, new = evaluation(0, 0.5, 0.5), evaluation(9, 0.9, 0.9)
    new["sampled"] |= {"num_failed": 3, "num_missing": 1}
    record = recorded(run_folder, old, new)
    assert unscored(record) == "3 failed, 1 out of time"
    assert list(text_table(record))[-1].endswith("3 failed, 1 out of time")


def test_only_what_exists_is_listed(run_folder: Path) -> None:
    names = [place.name for place in places(read_record(run_folder))]
    assert "metrics.jsonl" in names
    assert "checkpoints" not in names


def test_the_terminal_gets_table_words_conversations_and_places(run_folder: Path) -> None:
    text = "\n".join(report_lines(run_folder))
    assert text.startswith("lookup: 80 steps in 33 s, done\n\nheld-out prompts (256)")
    assert "before (version 0): reward 0.00\n  ? What is the pet of the friend of <zoe>?" in text
    assert "  > lookup(name=mia, field=pet)\n  < owl\n  = owl" in text
    assert f"written to {run_folder}:" in text


def test_a_supervised_run_gets_a_short_report(run_folder: Path) -> None:
    for name in ("events.jsonl", "transcripts.jsonl"):
        (run_folder / name).unlink()
    lines = list(report_lines(run_folder))
    assert lines[:3] == ["lookup: 80 steps in 33 s, done", "", f"written to {run_folder}:"]
