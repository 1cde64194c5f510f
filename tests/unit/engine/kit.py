"""Tiny decoders with random weights, engines that serve them, and how to drive those."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from milepost.actors.arrays import to_bulk
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import ModelShape, shape_from_config
from milepost.actors.engine.interface import (
    Finished,
    GenerateOrder,
    Outcome,
    ScoreFinished,
    ScoreOrder,
    Switched,
)
from milepost.messages.engine import PauseMode, TensorSpec
from milepost.messages.shared import SamplingParams

Weights = dict[str, NDArray[np.float32]]
VOCABULARY = 24


def tiny_config(**changes: Any) -> dict[str, Any]:
    """`config.json` of a decoder with a few thousand parameters."""
    config = {
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return {**config, **changes}


def tiny_shape(**changes: Any) -> ModelShape:
    return shape_from_config(tiny_config(**changes))


def manifest(shape: ModelShape, dtype: torch.dtype = torch.float32) -> tuple[TensorSpec, ...]:
    return Parameters(shape, dtype, torch.device("meta")).manifest


def random_weights(shape: ModelShape, seed: int) -> Weights:
    """Large enough that every layer changes the distribution."""
    rng = np.random.default_rng(seed)
    weights = {}
    for spec in manifest(shape):
        if len(spec.shape) == 1:
            values = rng.uniform(0.5, 1.5, spec.shape)
        else:
            values = rng.normal(0.0, spec.shape[-1] ** -0.5, spec.shape)
        weights[spec.name] = values.astype(np.float32)
    return weights


def digest_of(weights: Weights) -> str:
    """The digest of an epoch, as anybody else would compute it."""
    hasher = xxhash.xxh3_128()
    for name, values in weights.items():
        hasher.update(name.encode())
        hasher.update(values.tobytes())
    return hasher.hexdigest()


def make_engine(shape: ModelShape | None = None, **changes: Any) -> EmbeddedEngine:
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "slots": 8,
        "running_max": 6,
        "context_tokens": 64,
        "prefill_tokens_max": 64,
        **changes,
    }
    return EmbeddedEngine(shape or tiny_shape(), **options)


def publish(
    engine: EmbeddedEngine,
    weights: Weights,
    version: int,
    mode: PauseMode = PauseMode.RETRACT,
) -> Switched:
    """A whole epoch, from open to switch."""
    specs = tuple(
        TensorSpec(name=name, dtype="float32", shape=values.shape)
        for name, values in weights.items()
    )
    engine.staging.open(specs)
    engine.staging.write(tuple(weights), tuple(to_bulk(values) for values in weights.values()))
    engine.staging.check(digest_of(weights))
    return engine.switch(version, mode)


def serving(shape: ModelShape | None = None, seed: int = 0, **changes: Any) -> EmbeddedEngine:
    """An engine that serves version 0 of random weights."""
    shape = shape or tiny_shape()
    engine = make_engine(shape, **changes)
    publish(engine, random_weights(shape, seed), 0)
    return engine


def order(
    key: str,
    token_ids: list[int] | NDArray[np.int32],
    session: str = "",
    routes_start: int | None = None,
    **sampling: Any,
) -> GenerateOrder:
    """A request; the session is the request's own unless named."""
    row, params = np.array(token_ids, np.int32), SamplingParams(**sampling)
    return GenerateOrder(key, session or key, row, params, routes_start=routes_start)


def step(engine: EmbeddedEngine) -> list[Outcome]:
    with torch.inference_mode():
        return engine.step()


def drain(engine: EmbeddedEngine) -> dict[str, Outcome]:
    """Step until nothing is left to compute."""
    outcomes: dict[str, Outcome] = {}
    for _ in range(10_000):
        if not engine.has_work():
            return outcomes
        for outcome in step(engine):
            assert outcome.key not in outcomes, f"{outcome.key} was answered twice"
            outcomes[outcome.key] = outcome
    raise AssertionError("the engine never came to rest")


def generate(engine: EmbeddedEngine, *orders: GenerateOrder) -> dict[str, Finished]:
    """Run these requests, and only these, to their ends."""
    for each in orders:
        assert engine.generate(each) == []
    finished = {}
    for key, outcome in drain(engine).items():
        assert isinstance(outcome, Finished), outcome
        finished[key] = outcome
    return finished


def score(
    engine: EmbeddedEngine,
    *rows: NDArray[np.int32] | list[int],
    temperature: float = 1.0,
    use_cache: bool = False,
) -> ScoreFinished:
    arrays = tuple(np.array(row, np.int32) for row in rows)
    assert engine.score(ScoreOrder("score", arrays, temperature, use_cache)) == []
    outcome = drain(engine)["score"]
    assert isinstance(outcome, ScoreFinished), outcome
    return outcome


def random_row(seed: int, length: int, vocabulary: int = VOCABULARY) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
