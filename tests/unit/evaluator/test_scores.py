"""What outcomes come to."""

from __future__ import annotations

from milepost.actors.evaluator.scores import Outcome, Tally, score


def outcome(index: int, **metrics: float) -> Outcome:
    return Outcome(
        index=index,
        category="",
        reward=0.0,
        metrics=metrics,
        num_sampled_tokens=1,
        truncated=False,
    )


def test_a_number_is_averaged_over_who_reports_it_and_a_category_over_all() -> None:
    """An agent that answers well names no error: without it each category would be 1."""
    outcomes = [
        outcome(0, **{"error_cat/no_answer": 1.0, "tries": 4.0}),
        outcome(1, tries=2.0),
        outcome(2, **{"error_cat/no_answer": 1.0}),
        outcome(3),
    ]
    found = score(Tally(4, outcomes), "solved")
    assert found is not None
    assert found.metrics == {"error_cat/no_answer": 0.5, "tries": 3.0}
