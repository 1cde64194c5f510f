"""The cheap comparison says what the honest one says, and checks itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.session.kit import CALL_TEXT, LOOKUP, QUESTION, play, renderer, row_of, tool_result

from milepost.actors.session.text.canonical import AUDITED_EVERY, Canon, Comparison
from milepost.actors.session.text.proof import prove
from milepost.actors.session.text.rendering import Renderer
from milepost.messages.shared import FinishReason

SAID = ["cat", CALL_TEXT, CALL_TEXT.replace('": ', '":'), "a\n\nb ", "<|im_start|>", " "]


def played(texts: list[str], *, cut: bool = False) -> tuple[list[dict[str, Any]], Any]:
    """Messages and row of a conversation in which the model says these texts."""
    game = play()
    game.open()
    messages: list[dict[str, Any]] = [QUESTION]
    for number, text in enumerate(texts):
        last = number == len(texts) - 1
        reason = FinishReason.LENGTH if cut and last else FinishReason.STOP
        said = game.turn(messages, text, finish_reason=reason)
        messages = [*messages, said]
        if not last:
            calls = said.get("tool_calls") or []
            results = [tool_result("dog", call["id"]) for call in calls]
            messages += results or [{"role": "user", "content": "on"}]
    return messages, row_of(game.core)


def test_the_quick_start_s_template_only_appends() -> None:
    """So its sessions are compared cheaply; a note would say otherwise."""
    assert list(prove(renderer())) == []


@given(st.lists(st.sampled_from(SAID), min_size=1, max_size=4), st.booleans())
def test_cheap_and_honest_comparison_agree(texts: list[str], cut: bool) -> None:  # noqa: FBT001
    """Also for replies that spell special tokens, end otherwise, or were cut off."""
    messages, row = played(texts, cut=cut)
    honest = Canon(renderer()).compare(messages, [LOOKUP], row)
    cheap = Canon(renderer(), appends_only=True)
    for _ in range(2):
        assert cheap.compare(messages, [LOOKUP], row) == honest


class Counting:
    """A template that counts how often whole conversations are rendered."""

    def __init__(self, template: Any) -> None:
        self.template = template
        self.whole = 0

    def render(self, messages: Any, tools: Any = (), *, generate: bool) -> str:
        self.whole += len(messages) > 2
        text: str = self.template.render(messages, tools, generate=generate)
        return text


def counting(template: Any) -> tuple[Canon, Counting]:
    """A canon over such a template."""
    count = Counting(template)
    made: Any = Renderer(renderer().tokenizer, count, renderer().family)  # type: ignore[arg-type]
    return Canon(made, appends_only=True), count


def test_few_canonical_conversations_are_rendered_again() -> None:
    """Some are, so that a mistake in the proof cannot stay hidden for a whole run."""
    messages, row = played([CALL_TEXT, CALL_TEXT, "cat"])
    canon, count = counting(renderer().template)
    for _ in range(2 * AUDITED_EVERY):
        assert canon.compare(messages, [LOOKUP], row) == Comparison()
    assert count.whole == 2


def test_a_template_that_rewrites_the_past_after_all_is_found_by_the_audit() -> None:
    """From then on every conversation is rendered whole."""
    messages, row = played([CALL_TEXT, "cat"])

    class Rewriting:
        def render(self, messages: Any, tools: Any = (), *, generate: bool) -> str:
            text = renderer().template.render(messages, tools, generate=generate)
            return text.replace("pet of", "pet  of") if len(messages) > 2 else text

    canon, count = counting(Rewriting())
    for _ in range(AUDITED_EVERY - 1):
        assert canon.compare(messages, [LOOKUP], row).kinds == ()
    for _ in range(3):
        assert canon.compare(messages, [LOOKUP], row).kinds == ("non_assistant_text",)
    assert count.whole == 3
