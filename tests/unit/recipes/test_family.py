"""The recipes' own tokenizer, which merges across line ends, and the family that reads it."""

from __future__ import annotations

from pathlib import Path

from milepost.actors.session.text.proof import make_renderer, prove


def test_the_family_of_the_recipes_fits_their_tokenizer_and_template(checkpoint: Path) -> None:
    """`assistant` and its line end are one token there: what trails is not always a whole token.

    A session actor refuses to start when this does not hold, and with it the quick start.
    """
    assert [str(each) for each in prove(make_renderer(checkpoint, "qwen3", {}))] == []
