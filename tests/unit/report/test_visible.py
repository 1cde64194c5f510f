"""What a model writes is arbitrary: on a page nothing of it acts, and nothing of it hides."""

from __future__ import annotations

import pytest

from milepost.launch.visible import visible, visible_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, two\nlines\tand ünïcode 世界 🙂", "plain, two\nlines\tand ünïcode 世界 🙂"),
        ("\x1b[2J\x07\x00", "⟨U+001B⟩[2J⟨U+0007⟩⟨U+0000⟩"),
        ("\x7f\x9b31m", "⟨U+007F⟩⟨U+009B⟩31m"),
        ("right\u202eleft\u2066", "right⟨U+202E⟩left⟨U+2066⟩"),
        ("a\u200bb\ufeffc\u00ad", "a⟨U+200B⟩b⟨U+FEFF⟩c⟨U+00AD⟩"),
        ("two\u2028lines\r\n", "two⟨U+2028⟩lines⟨U+000D⟩\n"),
        ("half \ud800", "half ⟨U+D800⟩"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\u200dalone", "⟨U+200D⟩alone"),
        ("\U000e0041hidden", "⟨U+E0041⟩hidden"),
    ],
)
def test_what_would_act_or_hide_is_shown_by_name(text: str, shown: str) -> None:
    assert visible(text) == shown
    visible(text).encode()  # a page can hold it


def test_one_line_stays_one_line() -> None:
    assert visible_line("first\n12:00  supervisor done\tall is well\r") == (
        "first 12:00  supervisor done all is well⟨U+000D⟩"
    )
