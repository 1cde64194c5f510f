"""Replies under an adapter: who may ask for one, and that none is ever trained as the policy's."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.kit import QUESTION, Play, play, refused, row_of

from milepost.actors.session.http.models import Models
from milepost.messages.shared import Purpose


def adapted() -> Play:
    game = play()
    game.desk.adapters = ("formal", "terse")
    return game


@pytest.mark.parametrize("fields", [{}, {"deliver_to": ""}], ids=["evaluated", "free"])
def test_a_session_that_nobody_trains_samples_under_an_adapter(fields: dict[str, Any]) -> None:
    """And back under the policy itself; each turn of its row says which it was."""
    game = adapted()
    game.open(**{"purpose": Purpose.EVALUATE, "deliver_to": "evaluator", **fields})
    asked = game.chat([QUESTION], adapter="terse")
    assert game.open_ask()[2].adapter == "terse"
    game.sample("cat")
    answer: Any = game.replies[asked]
    game.turn([QUESTION, answer.message, {"role": "user", "content": "And?"}], "dog")
    assert [turn.adapter for turn in row_of(game.core).turns] == ["terse", ""]


def test_a_session_that_is_trained_is_refused_one() -> None:
    """C3, C4: such tokens have log-probs of weights that no version contains."""
    game = adapted()
    game.open()
    asked = game.chat([QUESTION], adapter="terse")
    assert "not the policy's" in refused(game, asked, "bad_request")
    assert game.asks == {}
    assert game.turn([QUESTION], "cat")["content"] == "cat"


def test_an_unknown_adapter_is_an_error_of_its_request_alone() -> None:
    """The policy's answer in its place would be measured as the adapter's."""
    game = adapted()
    game.open(purpose=Purpose.EVALUATE, deliver_to="evaluator")
    told = refused(game, game.chat([QUESTION], adapter="unheard"), "unknown_adapter")
    assert told == 'no adapter "unheard": this run has formal, terse'
    assert game.turn([QUESTION], "cat")["content"] == "cat"


@pytest.mark.parametrize(
    ("model", "adapter"),
    [
        ("terse", "terse"),
        ("policy:terse", "terse"),
        ("policy:unheard", "unheard"),
        ("policy", ""),
        ("policy:", ""),
        ("gpt-5", ""),
        ("ft:other:terse", ""),
        ("", ""),
    ],
)
def test_a_client_names_an_adapter_as_its_model(model: str, adapter: str) -> None:
    """Names that clients have for other models go on to mean the policy."""
    assert Models("policy", ("terse",)).adapter_of(model) == adapter


@pytest.mark.parametrize(
    ("models", "model", "adapter"),
    [
        (Models("qwen3"), "qwen3:8b", ""),
        (Models("qwen3:8b", ("terse",)), "qwen3:8b", ""),
        (Models("qwen3:8b", ("terse",)), "qwen3:8b:terse", "terse"),
        (Models("qwen3:8b", ("terse",)), "qwen3:terse", ""),
    ],
)
def test_a_colon_in_a_name_is_no_adapter(models: Models, model: str, adapter: str) -> None:
    """`NAME:TAG` is how other servers call models; where no adapters are, it is the policy."""
    assert models.adapter_of(model) == adapter


def test_adapters_are_listed_where_they_may_be_named() -> None:
    models = Models("policy", ("terse",))
    assert [one["id"] for one in models.listed(with_adapters=False)] == ["policy"]
    policy, terse = models.listed(with_adapters=True)
    assert (policy["id"], terse["id"], terse["parent"]) == ("policy", "terse", "policy")
