"""The numbers of a run in words: short, and only those that exist."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.launch.display.progress import Progress


def seconds(value: float) -> str:
    """`9 s`, `2:05`, `1:02:05`."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plain_line(progress: Progress) -> str:
    """One line for one step."""
    words = [f"step {progress.step}/{progress.steps}", *results(progress)]
    words += [*speed(progress), *freshness(progress), *waste(progress)]
    if progress.left_s is not None:
        words.append(f"{seconds(progress.left_s)} left")
    return "  ".join(words)


def results(progress: Progress) -> Iterator[str]:
    """How well the model does."""
    if progress.success is not None:
        yield f"success {progress.success:.2f}"
    if progress.reward is not None and progress.success is not None:
        yield f"reward {progress.reward:.2f}"
    elif progress.reward is not None:
        yield f"reward {progress.reward:.3g}"
    if progress.reward is None and progress.loss is not None:
        yield f"loss {progress.loss:.3f}"


def speed(progress: Progress) -> Iterator[str]:
    """How fast the two sides are."""
    speeds = [
        f"{name} {value:,.0f}"
        for name, value in (
            ("rollout", progress.sampled_per_s),
            ("trainer", progress.trained_per_s),
        )
        if value is not None
    ]
    if speeds:
        yield "tokens/s " + ", ".join(speeds)


def freshness(progress: Progress) -> Iterator[str]:
    """How old what is trained is."""
    if progress.queue is not None:
        yield f"queue {progress.queue}"
    if progress.staleness is not None:
        mean, highest = progress.staleness
        yield f"staleness {mean:.1f} (max {highest:.0f})"
    if progress.versions is not None:
        lowest, highest_version = progress.versions
        spread = f"{lowest}" if lowest == highest_version else f"{lowest}-{highest_version}"
        yield f"version {spread}"


def waste(progress: Progress) -> Iterator[str]:
    """What was sampled for nothing, and the account that most of it is in."""
    if progress.waste is not None:
        share, account = progress.waste
        yield f"wasted {share:.0%} ({account})"
