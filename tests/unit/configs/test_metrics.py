"""One table says what every metric is; nothing is said that it does not know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from milepost.configs.metrics import METRICS, Metric, Metrics

ROOT: Final = Path(__file__).parents[3]
HEADS: Final = ("rollout/", "train/", "perf/", "eval/", "system/")


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
        ("loss", None),
        ("perf/nothing", None),
    ],
)
def test_the_closest_row_is_the_one(name: str, row: str | None) -> None:
    found = METRICS.find(name)
    assert (found and found.name) == row


def test_a_name_stands_once() -> None:
    with pytest.raises(AssertionError, match="named twice"):
        Metrics(Metric("a", "1", "x"), Metric("a", "1", "y"))
