"""How old tapped messages are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from unit.launch.test_traffic import copy_fields, copy_of

from milepost.launch.traffic.ages import Ages
from milepost.launch.traffic.condition import Condition
from milepost.launch.traffic.seen import Array, Seen, read_copy
from milepost.messages.agent import RunEpisode
from milepost.messages.buffer import Batch, TrajectoryFinished
from milepost.messages.engine import Generate, Generated
from milepost.messages.examples import example
from milepost.messages.rollout import EvaluationFinished
from milepost.messages.shared import Message, VersionSpan
from milepost.messages.supervisor import TrafficCopy
from milepost.messages.trainer import VersionPublished


def actors(serving: int | None = 7) -> list[dict[str, Any]]:
    return [
        {"actor": "buffer", "statistics": {"serving": 99}},
        {"actor": "publisher", "statistics": {"serving": serving}},
    ]


def at(message: Message, at_ns: int) -> TrafficCopy:
    return TrafficCopy(**{**copy_fields(copy_of(message)), "at_ns": at_ns})


def aged(*versions: int) -> TrajectoryFinished:
    """A trajectory whose last row has these versions; its first row is of version 9."""
    found: Any = example(TrajectoryFinished)

    def with_spans(*each: int) -> Any:
        spans = tuple(VersionSpan(start=n, end=n + 1, version=v) for n, v in enumerate(each))
        return structs.replace(found.trajectory, spans=spans)

    others = with_spans(), with_spans(*versions)
    return TrajectoryFinished(trajectory=with_spans(9), others=others)


def age(ages: Ages, message: Message, at_ns: int = 5) -> int | str:
    return ages.of(read_copy("session-0", at(message, at_ns)))


def test_the_oldest_token_of_any_row_counts_against_what_was_published_then() -> None:
    """A message is judged by its own time, however late it is read."""
    ages = Ages(actors(serving=10))
    words = [example(EvaluationFinished), *(VersionPublished(version=v) for v in (11, 11, 12))]
    ages.note([at(word, at_ns) for at_ns, word in zip((15, 20, 25, 30), words, strict=True)])
    message = aged(8, 6, 7)
    assert [age(ages, message, at_ns) for at_ns in (1, 19, 20, 29, 30, 99)] == [4, 4, 5, 5, 6, 6]


def test_replies_of_engines_and_batches_have_an_age_too() -> None:
    ages = Ages(actors())
    spans = (VersionSpan(start=0, end=1, version=4), VersionSpan(start=1, end=3, version=8))
    assert age(ages, structs.replace(example(Generated), spans=spans)) == 3
    rows = (aged(5).trajectory, *aged(2).others)
    assert age(ages, structs.replace(example(Batch), trajectories=rows)) == 5


def test_an_engine_ahead_of_the_publishers_word_is_not_of_negative_age() -> None:
    spans = (VersionSpan(start=0, end=1, version=8),)
    assert age(Ages(actors()), structs.replace(example(Generated), spans=spans)) == 0


def test_what_has_no_age_says_so_by_name() -> None:
    ages = Ages(actors())
    assert (
        age(ages, example(Generate))
        == "Generate has no staleness: it carries no tokens with versions"
    )
    assert "this run has no publisher" in str(age(Ages(actors()[:1]), aged(3)))
    assert "no version was published" in str(age(Ages(actors(serving=None)), aged(3)))
    fields = {**copy_fields(copy_of(aged(3))), "body": b""}
    long = ages.of(read_copy("session-0", TrafficCopy(**fields)))
    assert long == "TrajectoryFinished has no staleness: its body is longer than a tap copies"


@pytest.mark.parametrize(
    "spans",
    [
        [[0, 5, 3]],
        ["Paris"],
        [{"start": 0, "end": 5}],
        [[0, 5]],
        [["a", "b", "c"]],
        {"Paris": [0, 5]},
        7,
        None,
    ],
)
def test_spans_of_somebody_elses_are_no_tokens_with_versions(spans: object) -> None:
    """Data sets of questions have spans of their own, and they travel in every message."""
    given: Any = example(RunEpisode)
    prompt = structs.replace(given.prompt, metadata={"spans": spans, "token_ids": [1]})
    without = "RunEpisode has no staleness: it carries no tokens with versions"
    assert age(Ages(actors()), structs.replace(given, prompt=prompt)) == without
    row = structs.replace(aged(5).others[1], metadata={"spans": spans})
    assert age(Ages(actors()), TrajectoryFinished(trajectory=row)) == 2


@pytest.mark.parametrize("spans", [7, [[0, 5]], [["a", "b", "c"]]])
def test_spans_of_a_row_that_have_another_shape_are_ignored(spans: object) -> None:
    fields = {"token_ids": Array("int32", [3], [1, 2, 3]), "spans": spans}
    envelope = {"type": "Mine"}
    seen = Seen(at_ns=5, envelope=envelope, fields={"row": fields}, is_whole=True)
    assert Ages(actors()).of(seen) == "Mine has no staleness: it carries no tokens with versions"
    fields["spans"] = [[0, 3, 4]]
    assert Ages(actors()).of(seen) == 3


def test_a_condition_may_ask_for_the_age_and_does_not_hold_without_one() -> None:
    condition = Condition("staleness > 2", ())
    assert condition.names == {"staleness"}
    assert condition.holds({"staleness": 3}, {})
    assert not condition.holds({"staleness": 2}, {})
    assert not condition.holds({}, {"staleness": 3})
