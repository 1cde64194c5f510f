"""Text of a model or a tool as a person may see it: nothing in it acts, nothing in it hides."""

from __future__ import annotations

import unicodedata
from typing import Final

KEPT: Final = frozenset("\n\t")
HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Categories: control, format (directions, joiners), private, surrogate, line and paragraph
separators."""
JOINER: Final = "\u200d"
"""Holds emoji together; alone it is shown."""


def visible(text: str) -> str:
    """The text with a sign in place of each character that would act or not be seen.

    Escapes to a terminal, changes of the writing direction, zero-width characters and lone
    surrogates become `⟨U+001B⟩`, `⟨U+202E⟩`; lines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(_sign(text, at) for at in range(len(text)))


def visible_line(text: str) -> str:
    """The same on one line: no line of its own can be forged."""
    return visible(text.replace("\t", " ").replace("\n", " "))


def _sign(text: str, at: int) -> str:
    character = text[at]
    if character.isprintable() or character in KEPT:
        return character
    if character == JOINER and 0 < at < len(text) - 1 and text[at - 1].isprintable():
        return character
    if unicodedata.category(character) in HIDDEN:
        return f"⟨U+{ord(character):04X}⟩"
    return character
