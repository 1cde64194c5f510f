"""Message types by name."""

from __future__ import annotations

import pytest

from milepost.messages import registry
from milepost.messages.buffer import GroupOpened, TrajectoryFinished
from milepost.messages.bulk import Bulk
from milepost.messages.control import NotUnderstood
from milepost.messages.engine import Score
from milepost.messages.shared import Message


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_types", dict(registry._types))
    monkeypatch.setattr(registry, "_by_name", {})


class Custom(Message, kw_only=True):
    rows: dict[str, list[tuple[int, Bulk]]]


def test_a_user_s_own_type_travels_once_it_is_registered() -> None:
    registry.register(Custom)
    registry.register(Custom)
    known = registry.find("Custom")
    assert known is not None
    assert known.type is Custom
    assert known.has_bulk


def test_two_types_of_one_name_are_refused_with_their_modules() -> None:
    namesake = type("GroupOpened", (Message,), {}, kw_only=True)
    with pytest.raises(ValueError, match=r"two message types are called GroupOpened: mile"):
        registry.register(namesake)
    with pytest.raises(TypeError, match="is no registered message type"):
        registry.of(namesake())


def test_which_types_hold_arrays_is_known_at_any_depth() -> None:
    """The others are encoded without a look at each value."""
    holds = {one.type: one.has_bulk for one in registry.registered()}
    assert holds[TrajectoryFinished]
    assert holds[Score]
    assert not holds[GroupOpened]
    assert not holds[NotUnderstood]


def test_the_nearest_name_helps_after_a_typo() -> None:
    assert registry.nearest("GroupOpend") == "GroupOpened"
    assert registry.nearest("Zzz") == ""
