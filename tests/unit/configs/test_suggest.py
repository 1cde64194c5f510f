"""Nearest names: a typo finds its word, a foreign word finds ours, nonsense finds the list."""

import pytest
from msgspec import Struct, inspect, structs

from milepost.configs.suggest import ELSEWHERE, did_you_mean, nearest
from milepost.configs.topology import Topology


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("sead", ["seed", "steps"], "seed"),
        ("timeout", ["timeout_s", "ranks"], "timeout_s"),
        ("Weight_Staleness", ["staleness_policy", "max_weight_staleness"], "max_weight_staleness"),
        ("learning_rate", ["ranks", "lr"], "lr"),
        ("lag", ["lr", "ranks"], "lr"),
    ],
)
def test_a_typo_finds_the_word_that_was_meant(name: str, known: list[str], expected: str) -> None:
    assert nearest(name, known) == expected


def test_nonsense_gets_no_suggestion_but_the_list_of_what_there_is() -> None:
    assert nearest("zzz", ["lr", "ranks"]) is None
    assert did_you_mean("zzz", ["ranks", "lr"]) == "known are `lr`, `ranks`"
    assert did_you_mean("zzz", []) == "nothing fits here"


def test_every_foreign_word_leads_to_a_field_that_exists() -> None:
    """A renamed field would otherwise leave a suggestion that cannot be followed."""
    assert set(ELSEWHERE.values()) <= set(_field_names(Topology))


def _field_names(kind: type[Struct]) -> list[str]:
    names: list[str] = []
    for field in structs.fields(kind):
        names.append(field.name)
        info = inspect.type_info(field.type)
        for member in getattr(info, "types", (info,)):
            if isinstance(member, inspect.StructType):
                names += _field_names(member.cls)
    return names
