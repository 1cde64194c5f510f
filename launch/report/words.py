"""What a run did, in words and in a table: pure text from the record."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from milepost.launch.display.words import seconds
from milepost.launch.report.record import Record
from milepost.messages.evaluator import Evaluation, Score

NOTICEABLE = 0.03
"""Smaller differences of success are called none: 256 prompts do not tell more."""
MOSTLY = 0.8


class Row(Struct, frozen=True):
    """One line of the table: a number before and after."""

    name: str
    before: float | None
    after: float | None
    indented: bool = False


def table(record: Record) -> list[Row]:
    """Success and reward on held-out prompts, before and after; empty without an evaluation."""
    rows: list[Row] = []
    for way in ("sampled", "greedy"):
        old, new = score(record.before, way), score(record.after, way)
        rows.append(Row(f"solved, {way}", _success(old), _success(new)))
        was, now = (one.success_by_category if one else {} for one in (old, new))
        rows += [
            Row(category, was.get(category), now.get(category), indented=True)
            for category in sorted({*was, *now})
        ]
        rows.append(Row(f"reward, {way}", _reward(old), _reward(new)))
    return [row for row in rows if row.before is not None or row.after is not None]


def _success(score: Score | None) -> float | None:
    return score.success if score else None


def _reward(score: Score | None) -> float | None:
    return score.reward if score else None


def score(evaluation: Evaluation | None, way: str) -> Score | None:
    """Of the sampled or the greedy episodes of an evaluation."""
    if evaluation is None:
        return None
    return evaluation.sampled if way == "sampled" else evaluation.greedy


def num_prompts(record: Record) -> str:
    """Prompts of the evaluations: `256`; where they differ, `32 before, 256 after`."""
    counts = {
        when: max(score.num_episodes for score in (evaluation.sampled, evaluation.greedy) if score)
        for when, evaluation in (("before", record.before), ("after", record.after))
        if evaluation is not None and (evaluation.sampled or evaluation.greedy)
    }
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{count} {when}" for when, count in counts.items())


def unscored(record: Record) -> str:
    """How many held-out episodes have no score, and why; empty when all have one."""
    counts = {"failed": 0, "refused for mixed versions": 0, "out of time": 0}
    for evaluation in (record.before, record.after):
        for score in (evaluation.sampled, evaluation.greedy) if evaluation else ():
            if score is not None:
                counts["failed"] += score.num_failed
                counts["refused for mixed versions"] += score.num_mixed
                counts["out of time"] += score.num_missing
    return ", ".join(f"{count} {why}" for why, count in counts.items() if count)


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def text_table(record: Record) -> Iterator[str]:
    """The table for a terminal."""
    rows = table(record)
    if not rows:
        return
    names = [("  " if row.indented else "") + row.name for row in rows]
    title = f"held-out prompts ({num_prompts(record)})"
    width = max(map(len, [title, *names]))
    yield f"{title:<{width}}   before    after"
    for name, row in zip(names, rows, strict=True):
        yield f"{name:<{width}}  {number(row.before):>7}  {number(row.after):>7}"
    if missing := unscored(record):
        yield f"without a score, and in no figure above: {missing}"


def headline(record: Record) -> str:
    """`lookup: 80 steps in 24 s, done`; of a resumed run, what its seconds are of."""
    summary = record.summary
    spent = seconds(float(summary["seconds"]["total"]))
    if since := record.resumed_from:
        spent = f"{spent} since it was resumed from step {since}"
        return f"{_steps(record)}, {summary['status']}; {spent}"
    return f"{_steps(record)} in {spent}, {summary['status']}"


def _steps(record: Record) -> str:
    return f"{record.topology.run.name}: {record.steps_done} steps"


def changes(record: Record) -> Iterator[str]:
    """What reinforcement learning changed, one plain sentence after the other."""
    before, after = record.before, record.after
    if before is None or after is None:
        yield "There are not two evaluations, so nothing can be said about what the run changed."
        return
    steps = after.version - before.version
    if before.sampled is not None and after.sampled is not None:
        yield from _sampled(before.sampled, after.sampled, steps)
    if before.greedy is not None and after.greedy is not None:
        yield from _greedy(before, after)


def _sampled(before: Score, after: Score, steps: int) -> Iterator[str]:
    if before.success is None or after.success is None:
        yield (
            f"Mean reward on held-out prompts went from {before.reward:.3f} to {after.reward:.3f} "
            f"in {steps} steps."
        )
        return
    change = after.success - before.success
    came = f"from {_share(before.success)} to {_share(after.success)}"
    if abs(change) < NOTICEABLE:
        yield (
            f"After {steps} steps on reward alone, sampled replies solve about as much as before: "
            f"{came} of the held-out prompts."
        )
    else:
        way = "rose" if change > 0 else "FELL"
        yield (
            f"In {steps} steps on reward alone, sampled success {way} {came} on prompts that were "
            "never trained on."
        )


def _greedy(before: Evaluation, after: Evaluation) -> Iterator[str]:
    old = before.greedy.success if before.greedy else None
    new = after.greedy.success if after.greedy else None
    if old is None or new is None:
        return
    came = f"{_share(old)} before and {_share(new)} after"
    gain = 0.0
    if after.sampled and before.sampled:
        gain = (after.sampled.success or 0.0) - (before.sampled.success or 0.0)
    if old - new > NOTICEABLE:
        yield f"Taking always the most likely token, it solved {came}: there it did worse."
    elif old >= MOSTLY and gain > NOTICEABLE:
        yield (
            f"Taking always the most likely token, it solved {came}: the right action was the "
            "likeliest one already. So the reward did not teach a new way to the answer; it made "
            "the model take the way it knew, reliably."
        )
    elif new - old > NOTICEABLE:
        yield (
            f"Taking always the most likely token, it solved {came}: at some points the likeliest "
            "action was a wrong one, and the reward turned it around."
        )
    else:
        yield f"Taking always the most likely token, it solved {came}."


def _share(value: float) -> str:
    return f"{value:.1%}"


class Place(Struct, frozen=True):
    """A file or folder of the run and what it holds."""

    name: str
    holds: str


PLACES = (
    Place("report.html", "this page; opens anywhere, needs nothing else"),
    Place("curve.png", "the curves"),
    Place("summary.json", "how it ended, scores, wall time of each phase"),
    Place("metrics.jsonl", "one object a step, every metric (step 0: before the first)"),
    Place("events.jsonl", "evaluations, restarts, refusals"),
    Place("transcripts.jsonl", "held-out conversations before and after"),
    Place("checkpoints", "checkpoints; step_*/hf loads with transformers"),
    Place("topology.toml", "every setting, resolved; `milepost run` takes it"),
    Place("tensorboard", "for `tensorboard --logdir`"),
    Place("logs", "what each process printed"),
)


def places(record: Record) -> list[Place]:
    """What the run's folder really holds."""
    return [place for place in PLACES if (record.folder / place.name).exists()]
