"""Ages in versions, on the example of the text book and against the obvious way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sim.rows import trajectory
from unit.buffer.kit import row

from milepost.actors.buffer.staleness import count_loss_tokens, versions_of
from milepost.messages.bulk import Bulk
from milepost.messages.shared import VersionSpan


def test_the_example_of_the_definition() -> None:
    """First tokens under version 12, last under 13, consumed at 14; 300 and 100 tokens of each."""
    spans = (
        VersionSpan(start=1, end=301, version=12),
        VersionSpan(start=301, end=401, version=13),
    )
    versions = versions_of([trajectory("g.0", spans=spans, reward=0.0)])
    assert versions is not None
    assert (versions.s_old(14), versions.s_post(14), versions.delta_gen) == (2, 1, 1)
    assert versions.mean == 12.25
    assert versions.s_token(14) == 1.75


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    versions = versions_of([row("g.0", 5), row("g.1", 3, 6)])
    assert versions is not None
    assert (versions.oldest, versions.newest, versions.num_tokens) == (3, 6, 3)


def test_without_any_version_there_is_no_age() -> None:
    assert versions_of([row("g.0")]) is None


def test_tokens_without_a_version_are_counted_apart() -> None:
    base = row("g.0", 4, tokens=2)
    mask = Bulk("uint8", (5,), b"\0\1\1\1\1")
    longer = type(base)(
        **{name: getattr(base, name) for name in base.__struct_fields__} | {"loss_mask": mask}
    )
    versions = versions_of([longer])
    assert versions is not None
    assert (versions.num_tokens, versions.num_unversioned) == (2, 2)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_ages_agree_with_counting_token_by_token(members: list[list[int]]) -> None:
    rows = [row(f"g.{at}", *versions, tokens=3) for at, versions in enumerate(members)]
    tokens = [
        span.version for each in rows for span in each.spans for _ in range(span.start, span.end)
    ]
    versions = versions_of(rows)
    assert versions is not None
    assert (versions.oldest, versions.newest) == (min(tokens), max(tokens))
    assert abs(versions.mean - sum(tokens) / len(tokens)) < 1e-9
    assert versions.num_tokens == len(tokens) == sum(map(count_loss_tokens, rows))
