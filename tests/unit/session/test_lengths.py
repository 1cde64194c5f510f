"""Prompts that cannot be answered are found before a run, in a time that has a limit."""

from __future__ import annotations

from unit.session.kit import renderer

from milepost.actors.session.lengths import longer_than
from milepost.actors.session.text.rendering import Renderer
from milepost.messages.shared import Prompt


def prompt(name: str, num_words: int) -> Prompt:
    return Prompt(prompt_id=name, messages=[{"role": "user", "content": "kai " * num_words}])


def length(one: Prompt) -> int:
    return len(renderer().render(renderer().first(one.messages, one.tools)).token_ids)


def test_exactly_the_prompts_without_room_are_named_with_their_tokens() -> None:
    prompts = [prompt(f"p:{number}", 100 * number) for number in range(1, 9)]
    room = length(prompts[4])
    found = {each.prompt_id: tokens for tokens, each in longer_than(room, prompts, renderer())}
    assert found == {each.prompt_id: length(each) for each in prompts[5:]}


def test_recorded_replies_count_where_they_are_trained() -> None:
    """An engine is given what came before it; supervised training takes the whole."""
    plain = prompt("plain", 600)
    replied = [*plain.messages, {"role": "assistant", "content": "kai " * 600}]
    recorded = Prompt(prompt_id="recorded", messages=replied)
    found = longer_than(length(plain) + 300, [plain, recorded], renderer(), whole=True)
    assert [each.prompt_id for _, each in found] == ["recorded"]


def test_what_is_short_by_its_bytes_is_not_rendered_and_the_longest_come_first() -> None:
    """A million short prompts cost no rendering; a scan out of time has seen the worst."""

    class Counting(Renderer):
        def __init__(self) -> None:
            self.rendered: list[bytes] = []

        def first(self, messages: object, tools: object) -> bytes:
            del tools
            assert isinstance(messages, list)
            return str(messages[0]["content"]).encode()

        def render(self, text: bytes) -> object:  # type: ignore[override]
            self.rendered.append(text)
            return renderer().render(renderer().first([{"role": "user", "content": "x"}], ()))

    counting = Counting()
    many = [prompt(f"p:{number}", 10) for number in range(1000)]
    assert longer_than(4000, many, counting) == []
    assert counting.rendered == []
    long = [prompt("long", 2000), prompt("longest", 3000)]
    longer_than(4000, [*many, *long], counting, scan_s=-1.0)
    assert counting.rendered == [b"kai " * 3000], "the time was up after the first"
