"""Routing replay is refused where it would be ignored, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.checks.test_files import subject

from milepost.configs.problem import Problem
from milepost.supervisor.checks import routes
from milepost.supervisor.checks.check import Note
from milepost.supervisor.checks.routes import model_has_routes, routes_find_their_way

MIXTURE = {
    "model_type": "qwen3_moe",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
    "max_position_embeddings": 512,
}
ENGINE_AND_TRAINER = {"engine": {}, "trainer": {"lr": 1e-3}}


def what_is_wrong(**algorithm: Any) -> list[str]:
    found = routes_find_their_way(
        subject(algorithm={"replay_routes": True, **algorithm}, actors=ENGINE_AND_TRAINER)
    )
    return [str(problem) for problem in found]


def test_engine_and_trainer_of_these_kinds_go_together() -> None:
    assert what_is_wrong() == []


def test_supervised_rows_have_no_routes() -> None:
    assert "went through no engine" in what_is_wrong(estimator="sft")[0]


@pytest.mark.parametrize(
    ("table", "told"),
    [("RETURNING", 'engines of kind "embedded"'), ("REPLAYING", 'a trainer of kind "fsdp"')],
)
def test_a_kind_that_cannot_is_refused_by_name(
    table: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next kind of engine or trainer is refused until somebody says that it can."""
    monkeypatch.setattr(routes, table, ("another",))
    (problem,) = what_is_wrong()
    assert told in problem
    assert "$.algorithm.replay_routes" in problem
    assert "another" in problem


def findings(folder: Path, *, replay: bool = True, **changes: Any) -> list[Problem | Note]:
    (folder / "config.json").write_text(json.dumps({**MIXTURE, **changes}))
    return list(
        model_has_routes(
            subject(
                model={"path": str(folder)},
                algorithm={"replay_routes": replay},
                limits={"tokens_max": 1 << 20},
            )
        )
    )


def test_routes_of_a_mixture_are_announced_with_their_size(tmp_path: Path) -> None:
    """Three of four layers, two experts a token, a byte each: the payload of every row."""
    (note,) = findings(tmp_path)
    assert isinstance(note, Note)
    assert "6 bytes a token, up to 6.0 MiB for one row" in str(note)
    assert findings(tmp_path, replay=False) == []


@pytest.mark.parametrize(
    "changes", [{"model_type": "qwen3"}, {"mlp_only_layers": [0, 1, 2, 3]}, {"num_experts": 0}]
)
def test_a_dense_model_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    (problem,) = findings(tmp_path, **changes)
    assert isinstance(problem, Problem)
    assert "has no mixture of experts" in str(problem)


def test_what_another_check_names_is_left_to_it(tmp_path: Path) -> None:
    assert findings(tmp_path, model_type="gpt2") == []
