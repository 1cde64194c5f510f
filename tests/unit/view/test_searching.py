"""Addresses as queries: what they mean, what they refuse, and pages of what they find."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from unit.view.kit import EVIL

from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.query import Query
from milepost.launch.view.links import Links
from milepost.launch.view.paging import page_links, paging
from milepost.launch.view.searching import NotSearchable, is_narrow, query_of, words_of
from milepost.messages.shared import Status


def test_every_word_of_an_address_is_a_field_of_the_query() -> None:
    words = {
        "text": " owl ",
        "status": "truncated",
        "verdict": "dropped",
        "step": "7",
        "group": "g1",
        "reward_min": "-0.5",
        "reward_max": "1e2",
        "staleness_min": "2",
        "mismatch": "yes",
        "order": "-reward",
    }
    assert query_of(words) == Query(
        text="owl",
        status=Status.TRUNCATED,
        verdict=Verdict.DROPPED,
        step=7,
        group_id="g1",
        reward_min=-0.5,
        reward_max=100.0,
        staleness_min=2,
        has_mismatch=True,
        order_by="reward",
        descending=True,
    )
    assert is_narrow(query_of(words))
    assert query_of({}) == Query(descending=True)
    assert not is_narrow(query_of({"order": "reward", "status": ""}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "fine"),
        ("verdict", EVIL),
        ("step", "-1"),
        ("step", "९"),
        ("step", "9" * 40),
        ("reward_min", "nan"),
        ("reward_max", "inf"),
        ("reward_max", "much"),
        ("mismatch", "maybe"),
        ("text", " ow "),
        ("text", "owl\0x"),
        ("order", "key; DROP TABLE trajectories"),
    ],
)
def test_a_word_without_meaning_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(NotSearchable, match=name):
        query_of({name: value})


def test_words_that_nobody_knows_are_left_out() -> None:
    """`?run=...` must not become another argument of a function."""
    assert words_of({"run": "x", "self": "y", "text": " ", "step": "3"}) == {"step": "3"}


@pytest.mark.parametrize(
    "name", ["g1.0", "a/b", "..", ".", "%2e%2e", "a b?c#d&e", EVIL, "ünï", "x" * 300]
)
def test_any_name_is_one_part_of_a_path(name: str) -> None:
    links = Links("/token")
    for address in (links.trajectory(name, name, 2), links.group(name, name), links.run(name)):
        path = urlsplit(address).path
        assert path.count("/") in {3, 5}
        assert not {"..", "."} & set(path.split("/"))
    assert parse_qs(urlsplit(links.trajectory("r", name, 2)).query) == {"attempt": ["2"]}


def test_pages_are_those_that_there_are() -> None:
    page = paging(3, 50, 401)
    assert (page.offset, page.first, page.last, page.num_pages) == (100, 101, 150, 9)
    assert paging(99, 50, 401).number == 9
    assert paging(-1, 50, 0).number == 1
    assert (paging(1, 50, 0).first, paging(1, 50, 0).last) == (0, 0)
    links = page_links(page, "/{}".format)
    assert [(each.number, each.is_here, each.after_gap) for each in links] == [
        (1, False, False),
        (2, False, False),
        (3, True, False),
        (4, False, False),
        (9, False, True),
    ]
    assert page_links(paging(1, 50, 50), str) == []
