"""Four lamps that people trust: green is a measurement that held, never a hope."""

from __future__ import annotations

import math
from typing import Any

import pytest
from unit.monitor.kit import about, event, step

from milepost.actors.trainer.door import GROUP, REWARD, SEAL
from milepost.actors.trainer.ranks import Ranks
from milepost.launch.monitor.contracts import RECENT_STEPS, STALE, Colour, Lamp, Refusals, lamps

MEASURED = {name: float(value) for name, value in step(30).items() if "/" in name}
REFUSED = "C1 same tokens: prefix [0, 9) hashes to ab, turn 0 says cd: trajectory g1.0"


def lit(
    metrics: dict[str, float], *events: dict[str, Any], at: int = 30, **changed: Any
) -> tuple[Lamp, ...]:
    refusals = Refusals()
    for each in events:
        refusals.note(each)
    guard = changed.pop("guard", "")
    groups = changed.pop("groups", 240)
    return lamps(about(**changed), metrics, refusals, step=at, groups_trained=groups, guard=guard)


def colours(*words: Any, **changed: Any) -> list[str]:
    return [lamp.colour.value for lamp in lit(*words, **changed)]


def refused(at: int, reason: str = REFUSED) -> dict[str, Any]:
    text = f"step {at}: refused 1 groups, the first: {reason}"
    return event("refused_at_door", text, "trainer-0", g1=reason)


def test_nothing_measured_is_grey_and_never_green() -> None:
    assert colours({}, groups=0) == ["grey"] * 4
    assert {lamp.figure for lamp in lit({}, groups=0)} == {"not measured"}


def test_what_was_measured_and_held_is_green() -> None:
    """C2 is grey in the same run: no routes are replayed, so nothing is known of them."""
    assert colours(MEASURED) == ["green", "grey", "green", "green"]


def test_routes_of_a_dense_model_are_not_needed_and_not_unknown() -> None:
    """A grey lamp that could never be lit says so; the others ask for somebody who measures."""
    dense = lit(MEASURED, routes="dense")[1]
    assert (dense.colour, dense.figure, dense.needed) == (Colour.GREY, "not needed", False)
    assert dense.note == "a dense model has no routes"
    unknown = lit(MEASURED, routes="not replayed")[1]
    assert (unknown.colour, unknown.figure, unknown.needed) == (Colour.GREY, "not measured", True)
    assert lit({}, routes="replayed")[1].note == "no batch is trained yet"


def test_replayed_routes_are_green_with_how_often_the_trainer_would_have_gone_elsewhere() -> None:
    lamp = lit({**MEASURED, "train/route_mismatch_ratio": 0.012}, routes="replayed")[1]
    assert (lamp.colour, lamp.figure) == (Colour.GREEN, "240 groups, 0 refused")
    assert lamp.note == "1.2% of choices would have been others"
    reason = "C2 same routes: routes of positions [0, 8) hash to a, turn 0 says b"
    broken = lit({**MEASURED, "train/route_mismatch_ratio": 0.012}, refused(30, reason))[1]
    assert (broken.colour, broken.note) == (Colour.RED, reason)


@pytest.mark.parametrize(("place", "name"), list(enumerate(("C1", "C2", "C3", "C4"))))
def test_a_refusal_lights_its_own_lamp_red_then_yellow(place: int, name: str) -> None:
    reason = f"{name} something: it does not hold"
    new = colours(MEASURED, refused(30, reason))
    assert new[place] == "red"
    assert [new[other] for other in range(4) if other != place] == [
        colours(MEASURED)[other] for other in range(4) if other != place
    ]
    old = lit(MEASURED, refused(30 - RECENT_STEPS, reason))[place]
    assert old.colour is Colour.YELLOW
    assert old.note == reason


def test_each_refused_group_counts_under_the_contract_that_it_broke() -> None:
    reasons = {"g1": REFUSED, "g2": REFUSED, "g3": "C4 same version: position 3 has none"}
    both = event("refused_at_door", "step 30: refused 3 groups", "trainer-0", **reasons)
    found = lit(MEASURED, both)
    assert found[0].figure == "240 groups, 2 refused"
    assert found[3].colour is Colour.RED


@pytest.mark.parametrize("name", [SEAL, REWARD, GROUP])
def test_a_refusal_that_names_no_contract_lights_the_first_lamp(name: str) -> None:
    """A row that was altered on its way is the dearest failure: all four stayed green."""
    reason = f"{name}: the row seals to ab, its certificate says cd: trajectory g1.0"
    found = lit(MEASURED, refused(30, reason))
    assert [lamp.colour.value for lamp in found] == ["red", "grey", "green", "green"]
    assert (found[0].figure, found[0].note) == ("240 groups, 1 refused", reason)


def test_a_group_that_is_only_too_old_is_the_limit_at_work() -> None:
    """The door says so in other words than those of a broken certificate."""
    reason = f"{STALE} is of version 3, published is 9, the limit is 2 behind"
    lamp = lit(MEASURED, refused(30, reason), staleness_max=2)[3]
    assert lamp.colour is Colour.YELLOW
    assert "1 groups refused for their age" in lamp.note
    assert lit(MEASURED, refused(1, reason), staleness_max=2)[3].colour is Colour.GREEN


def test_the_words_of_the_door_for_such_a_group_are_known_here() -> None:
    """When the trainer says it in another way, a routine refusal would look like a fault."""
    from pathlib import Path
    from sys import modules

    source = Path(str(modules[Ranks.__module__].__file__)).read_text(encoding="utf-8")
    assert f'f"{STALE}' in source


@pytest.mark.parametrize(
    ("coverage", "oldest", "limit", "corrected", "colour"),
    [
        (1.0, 2.0, None, False, "green"),
        (1.0, 2.0, 2, False, "green"),
        (1.0, 3.0, 2, False, "red"),
        (1.0, 3.0, 2, True, "yellow"),
        (0.99, 0.0, None, True, "red"),
        (math.nan, 0.0, None, True, "red"),
    ],
)
def test_every_token_has_a_version_and_none_is_older_than_allowed(
    coverage: float, oldest: float, limit: int | None, *, corrected: bool, colour: str
) -> None:
    changed = {
        **MEASURED,
        "rollout/weight_version/sample_coverage": coverage,
        "rollout/staleness/s_old_max": oldest,
    }
    found = lit(changed, staleness_max=limit, stale_is_corrected=corrected)
    assert found[3].colour == colour


@pytest.mark.parametrize(
    ("same", "probe", "limits", "colour"),
    [
        (1e-7, 2e-8, {}, "green"),
        (1e-3, 2e-8, {}, "red"),
        (1e-3, 2e-8, {"guard_max": 1e-2}, "green"),
        (None, 2e-8, {}, "green"),
        (None, 2e-3, {}, "red"),
        (1e-7, None, {"difference_max": 0.0}, "yellow"),
        (math.nan, None, {}, "red"),
        (None, None, {}, "grey"),
    ],
)
def test_log_probs_are_judged_by_a_stated_difference(
    same: float | None, probe: float | None, limits: dict[str, Any], colour: str
) -> None:
    """Without a limit there is a figure, and no verdict; not a number is no agreement."""
    names = ("train/train_rollout_logprob_abs_diff_same_version", "perf/canary_logprob_difference")
    rest = {name: value for name, value in MEASURED.items() if name not in names}
    pairs = zip(names, (same, probe), strict=True)
    changed = rest | {name: value for name, value in pairs if value is not None}
    assert lit(changed, **limits)[2].colour == colour


def test_a_canary_that_failed_lights_the_third_lamp() -> None:
    wrong = event("canary", "version 30: engine-0 differs by 0.4 nats", "publisher")
    lamp = lit(MEASURED, wrong)[2]
    assert lamp.colour is Colour.RED
    assert "0.4 nats" in lamp.note


def test_a_broken_template_is_yellow_and_a_word_of_the_model_is_not() -> None:
    """Rows that differ from their rendering where the model wrote it are harmless."""
    name = "rollout/tito_session_mismatch_rate/v1"
    assert lit({**MEASURED, name: 0.1, f"{name}/assistant_text": 0.1})[0].colour is Colour.GREEN
    broken = lit({**MEASURED, name: 0.1, f"{name}/special_token_count": 0.05})[0]
    assert broken.colour is Colour.YELLOW
    assert "5.0% of rows" in broken.note
