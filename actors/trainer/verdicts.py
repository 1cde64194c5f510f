"""What is written of a row that the trainer's door let in, for each contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from milepost.actors.trainer.door import SEAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from milepost.actors.trainer.works import DoorRules

PASSED: Final = "passed"
NOT_CHECKED: Final = "not checked"
NOT_APPLICABLE: Final = "not applicable"
"""There is nothing that could be checked: routes of a dense model."""
ROUTES: Final = "C2"


def passed(rules: DoorRules) -> dict[str, str]:
    """Verdicts of a row that was let in."""
    sampled = NOT_CHECKED if rules.sft else PASSED
    routes = PASSED if rules.routes is not None else NOT_CHECKED
    if not rules.model.is_mixture:
        routes = NOT_APPLICABLE
    return {"C1": PASSED, ROUTES: routes, "C3": sampled, "C4": sampled, SEAL: PASSED}


def impossible(said: Mapping[str, str], rules: DoorRules) -> Iterator[str]:
    """Verdicts that no row has which these rules let in, and which was trained, therefore.

    Args:
        said: contract -> verdict, as it was written.
        rules: what the door knew, but for whether the model has experts: where it says nothing of
            routes, a verdict on them may be any good one.
    """
    expected = passed(rules)
    for contract in sorted(said.keys() | expected.keys()):
        found, due = said.get(contract), expected.get(contract)
        is_free = contract == ROUTES and rules.routes is None
        good = {PASSED, NOT_CHECKED, NOT_APPLICABLE} if is_free else {due}
        if found not in good:
            yield f"{contract} is {found!r} at the trainer, of a row that was let in it is {due!r}"
