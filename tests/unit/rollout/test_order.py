"""The endless order of prompts: nothing skipped, nothing repeated, the same after a resume."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.rollout.cursor import PromptOrder
from milepost.messages.shared import Prompt


def prompts(count: int) -> list[Prompt]:
    return [Prompt(prompt_id=str(index), messages=[]) for index in range(count)]


@given(st.integers(1, 30), st.integers(0, 9), st.integers(0, 3))
def test_every_epoch_has_every_prompt_once(count: int, seed: int, epoch: int) -> None:
    order = PromptOrder(prompts(count), seed, shuffle=True)
    positions = range(epoch * count, (epoch + 1) * count)
    assert sorted(int(order.at(at).prompt_id) for at in positions) == list(range(count))


def test_epochs_have_orders_of_their_own() -> None:
    order = PromptOrder(prompts(50), 0, shuffle=True)
    first = [order.at(at).prompt_id for at in range(50)]
    second = [order.at(at).prompt_id for at in range(50, 100)]
    assert first != second
    assert first != [prompt.prompt_id for prompt in prompts(50)]


@given(st.lists(st.integers(0, 100), max_size=20))
def test_a_position_means_the_same_prompt_however_one_comes_to_it(positions: list[int]) -> None:
    """A resumed run asks for position 37 first; retries go back over an epoch's border."""
    used = PromptOrder(prompts(7), 3, shuffle=True)
    for at in positions:
        assert used.at(at) == PromptOrder(prompts(7), 3, shuffle=True).at(at)


def test_without_shuffle_the_file_s_order_repeats() -> None:
    order = PromptOrder(prompts(3), 0, shuffle=False)
    assert [order.at(at).prompt_id for at in range(7)] == list("0120120")
