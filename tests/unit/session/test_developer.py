"""What OpenAI's clients send as a developer's words reaches the model, at every turn."""

from __future__ import annotations

import pytest
from unit.session.family_kit import family_renderer
from unit.session.kit import LOOKUP, QUESTION, play, text_of

from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.template import RenderFailed

TOLD = {"role": "developer", "content": "Answer in one word."}


@pytest.mark.parametrize("name", sorted(DECLARATIONS))
def test_every_family_writes_what_a_developer_says_first(name: str) -> None:
    """A template that knows no developers would leave the instructions out without a word."""
    renderer = family_renderer(name)
    for tools in ([], [LOOKUP]):
        text = renderer.text(renderer.first([TOLD, QUESTION], tools))
        assert TOLD["content"] in text
        assert text.index(TOLD["content"]) < text.index(str(QUESTION["content"]))


def test_a_developer_may_speak_after_a_reply_where_the_system_may() -> None:
    """Harnesses say so what has changed since; the row goes on as with any other message."""
    game = play()
    game.open()
    said = game.turn([TOLD, QUESTION], "cat")
    game.chat([TOLD, QUESTION, said, {"role": "developer", "content": "In two words."}, QUESTION])
    prompt = text_of(game.open_ask()[2].token_ids)
    assert prompt.index("Answer in one word.") < prompt.index("cat") < prompt.index("In two words.")


def test_a_system_message_that_is_left_out_is_refused_where_it_is_said() -> None:
    """In a first prompt, after a reply, and in a recorded conversation."""
    renderer = family_renderer("minimax_m2.5")
    rules, reply = {"role": "system", "content": "rules"}, {"role": "assistant", "content": "cat"}
    renderer.render(renderer.first([rules, QUESTION], ()))
    for text in (renderer.first([QUESTION, rules], ()), renderer.delta([rules], (), ())):
        with pytest.raises(RenderFailed, match="writes nothing of a system message"):
            renderer.render(text)
    with pytest.raises(RenderFailed, match="writes nothing of a system message"):
        conversation_row(renderer, [QUESTION, reply, rules, QUESTION, reply], ())
