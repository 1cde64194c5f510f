"""Chat-template families: boundary repair, stop tokens, parsers."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Final

from milepost.actors.session.families.base import (
    Family,
    ParsedReply,
    ReplyDelta,
    ReplyParser,
    Seam,
    UnknownFamily,
)
from milepost.actors.session.families.declared import Declared
from milepost.actors.session.families.default import Default
from milepost.actors.session.families.table import DECLARATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from milepost.actors.session.text.tokenizer import Tokenizer

__all__ = [
    "FAMILIES",
    "Family",
    "ParsedReply",
    "ReplyDelta",
    "ReplyParser",
    "Seam",
    "UnknownFamily",
    "bundled_template",
    "make_family",
]

FAMILIES: Final[dict[str, Callable[[Tokenizer], Family]]] = {
    "default": Default,
    **{name: partial(Declared, each) for name, each in DECLARATIONS.items()},
}


def make_family(name: str, tokenizer: Tokenizer) -> Family:
    """The family called `name`, bound to this tokenizer.

    Raises:
        UnknownFamily: no such family, or the tokenizer lacks what the family needs.
    """
    if name not in FAMILIES:
        near = get_close_matches(name, FAMILIES, n=1)
        hint = f", did you mean {near[0]!r}" if near else ""
        raise UnknownFamily(
            f"unknown family {name!r} at $.model.family{hint}: known are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[name](tokenizer)


def bundled_template(name: str) -> str:
    """File of the template that Milepost brings for this family; empty when models bring theirs."""
    declaration = DECLARATIONS.get(name)
    return declaration.template if declaration else ""
