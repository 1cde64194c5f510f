"""Tokens per second of the embedded engine on one core, beside what else could generate them.

    pytest tests/bench/bench_engine.py -s

CPU time of one thread, best of several interleaved repetitions, so that a busy machine slows all of
them alike. The quick start's decoder: prompts of 60 tokens, 80 sampled.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from bench.engine_loop import StaticLoop, quick_start_config
from unit.engine.kit import (
    drain,
    manifest,
    order,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    step,
)
from unit.engine.kit import make_engine as kit_engine

from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.shape import ModelShape, shape_from_config
from milepost.actors.engine.interface import Finished
from milepost.messages.engine import PauseMode

PROMPT, NEW, REPEATS = 60, 80, 7
BATCHES = (1, 8, 32, 64)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return shape_from_config(quick_start_config())


def make_engine(shape: ModelShape) -> EmbeddedEngine:
    return serving(shape, slots=128, running_max=64, context_tokens=512, prefill_tokens_max=8192)


def prompts(batch: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, 400, (batch, PROMPT)).astype(np.int32)


def by_engine(engine: EmbeddedEngine, batch: int, seed: int) -> None:
    for number, row in enumerate(prompts(batch, seed)):
        engine.generate(order(f"{seed}.{number}", row, tokens_max=NEW, seed=seed * 1000 + number))
    replies = drain(engine)
    assert len(replies) == batch
    engine.forget(tuple(replies))


def by_loop(loop: StaticLoop, batch: int, seed: int) -> None:
    loop.generate(prompts(batch, seed), NEW, seed)


def cpu_s(work: Callable[[int], object], seed: int) -> float:
    started_s = time.process_time()
    work(seed)
    return time.process_time() - started_s


def compare(works: dict[str, Callable[[int], object]], repeats: int = REPEATS) -> dict[str, float]:
    """Best CPU seconds of each, repetitions taken in turn."""
    for work in works.values():
        work(0)
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(1, repeats + 1):
        for name, work in works.items():
            times[name].append(cpu_s(work, repeat))
    return {name: min(values) for name, values in times.items()}


def test_decoding_is_at_least_as_fast_as_a_plain_static_loop(shape: ModelShape) -> None:
    """Continuous batching, prefixes, seeds and versions must not cost throughput."""
    engine = make_engine(shape)
    loop = StaticLoop(shape, random_weights(shape, 0))
    print(f"\n{'batch':>6} {'engine tok/s':>13} {'plain loop':>11} {'ratio':>6}")
    ratios = {}
    for batch in BATCHES:
        best = compare(
            {
                "engine": partial(by_engine, engine, batch),
                "loop": partial(by_loop, loop, batch),
            }
        )
        speeds = {name: batch * NEW / seconds for name, seconds in best.items()}
        ratios[batch] = speeds["engine"] / speeds["loop"]
        print(f"{batch:6} {speeds['engine']:13.0f} {speeds['loop']:11.0f} {ratios[batch]:6.2f}")
    assert ratios[32] >= 1
    assert ratios[64] >= 1


def test_the_plain_loop_computes_the_same_model(shape: ModelShape) -> None:
    """A rival that is wrong would be an easy one."""
    loop = StaticLoop(shape, random_weights(shape, 0))
    rows = prompts(2, 5)
    ids, logprobs = loop.generate(rows, 10, 1)
    whole = [np.concatenate((row, new.numpy())) for row, new in zip(rows, ids, strict=True)]
    scored = score(make_engine(shape), *whole)
    for found, expected in zip(scored.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(found[PROMPT:], expected.numpy(), atol=1e-5)


def test_beside_generate_of_transformers(shape: ModelShape) -> None:
    """What most people would call; it reports no log-probs here and still costs more."""
    import transformers

    config = transformers.Qwen3Config(**quick_start_config())
    model: Any = transformers.Qwen3ForCausalLM(config)
    model.eval()
    engine = make_engine(shape)

    def generate(batch: int, seed: int) -> None:
        torch.manual_seed(seed)
        ids = torch.from_numpy(prompts(batch, seed).astype(np.int64))
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                pad_token_id=0,
            )

    print(f"\n{'batch':>6} {'engine tok/s':>13} {'transformers':>13} {'ratio':>6}")
    for batch in (1, 32, 64):
        best = compare(
            {
                "engine": partial(by_engine, engine, batch),
                "generate": partial(generate, batch),
            },
            repeats=3,
        )
        ours, theirs = (batch * NEW / best[name] for name in ("engine", "generate"))
        print(f"{batch:6} {ours:13.0f} {theirs:13.0f} {ours / theirs:6.2f}")
        assert ours > theirs


def test_turns_of_many_sessions(shape: ModelShape) -> None:
    """The quick start's load: 64 sessions, groups of 8, four short turns each."""
    engine = make_engine(shape)
    rng = np.random.default_rng(0)

    def episodes(seed: int) -> tuple[int, int]:
        asks = rng.integers(0, 400, (8, 40)).astype(np.int32)
        rows = {f"{seed}.{n}": asks[n // 8] for n in range(64)}
        sampled = cached = 0
        for turn in range(4):
            for session, row in rows.items():
                key = f"{session}.{turn}"
                engine.generate(order(key, row, session, tokens_max=9, seed=hash(key) & 0xFFFF))
            for key, reply in drain(engine).items():
                assert isinstance(reply, Finished)
                sampled, cached = sampled + len(reply.token_ids), cached + reply.cached_tokens
                session = key.rpartition(".")[0]
                result = rng.integers(0, 400, 12).astype(np.int32)
                rows[session] = np.concatenate((rows[session], reply.token_ids, result))
        publish(engine, random_weights(shape, seed), seed, PauseMode.RETRACT)
        return sampled, cached

    episodes(0)
    best_s, sampled, cached = 1e9, 0, 0
    for seed in range(1, REPEATS + 1):
        started_s = time.process_time()
        sampled, cached = episodes(seed)
        best_s = min(best_s, time.process_time() - started_s)
    print(f"\n{sampled} tokens in {256} turns: {sampled / best_s:.0f} tok/s, {best_s * 1e3:.0f} ms")
    print(
        f"{best_s / 256 * 1e6:.0f} us a turn, {cached / 256:.0f} prompt tokens of each were cached"
    )
    assert cached / 256 > 40


def test_turns_of_sessions_that_think(shape: ModelShape) -> None:
    """Agents and tools take their time: few rows decode at once, and every pass has some prefill.

    64 sessions of four turns, each turn back after 25 passes on average. What a pass costs here,
    more than what a token costs in a full batch, is what the quick start pays.
    """
    engine = make_engine(shape)

    def episodes(seed: int) -> tuple[int, int]:
        rng = np.random.default_rng(seed)
        asks = rng.integers(0, 400, (16, 40)).astype(np.int32)
        due = [(int(rng.geometric(1 / 25)), f"{seed}.{n}", 0) for n in range(128)]
        heapq.heapify(due)
        rows = {f"{seed}.{n}": asks[n // 8] for n in range(128)}
        passes = tokens = 0
        while due or engine.has_work():
            while due and (due[0][0] <= passes or not engine.has_work()):
                _, session, turn = heapq.heappop(due)
                seed_of_turn = int(rng.integers(1 << 40))
                asked = order(
                    f"{session}.{turn}",
                    rows[session],
                    session,
                    tokens_max=int(rng.integers(4, 14)),
                    seed=seed_of_turn,
                )
                engine.generate(asked)
            passes += 1
            for outcome in step(engine):
                assert isinstance(outcome, Finished)
                tokens += len(outcome.token_ids)
                session, _, number = outcome.key.rpartition(".")
                result = rng.integers(0, 400, 12).astype(np.int32)
                rows[session] = np.concatenate((rows[session], outcome.token_ids, result))
                if int(number) < 3:
                    back = passes + int(rng.geometric(1 / 25))
                    heapq.heappush(due, (back, session, int(number) + 1))
                else:
                    engine.forget((session,))
        return passes, tokens

    episodes(0)
    best = (1e9, 0.0, 0.0)
    for seed in range(1, 2 * REPEATS):
        started_s = time.process_time()
        passes, tokens = episodes(seed)
        seconds = time.process_time() - started_s
        best = min(best, (seconds / passes, tokens / passes, tokens / seconds))
    print(f"\n{best[0] * 1e6:.0f} us a pass of {best[1]:.1f} tokens, {best[2]:.0f} tok/s")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_speed_of_a_small_real_shape_on_a_gpu() -> None:
    """Qwen3-0.6B's shape with random weights: printed, for the notes."""
    shape = shape_from_config(
        {
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        }
    )
    engine = kit_engine(
        shape, dtype=torch.bfloat16, device=torch.device("cuda"), slots=128, running_max=128,
        context_tokens=2048, prefill_tokens_max=16384,
    )  # fmt: skip
    engine.staging.open(manifest(shape, torch.bfloat16))
    staged = engine.staging._open
    assert staged is not None
    for spec in manifest(shape, torch.bfloat16):
        window = staged._windows[spec.name]
        window.normal_(0, 0.02) if len(spec.shape) > 1 else window.fill_(1.0)
        engine.staging._missing.discard(spec.name)
    engine.switch(0, PauseMode.RETRACT)
    for batch in (1, 32, 128):
        for repeat in range(2):
            for n in range(batch):
                row = random_row(n + repeat * 1000, 512, 151936)
                engine.generate(order(f"{repeat}.{n}", row, tokens_max=64, seed=n))
            torch.cuda.synchronize()
            started_s = time.perf_counter()
            step(engine)
            prefill_s = time.perf_counter() - started_s
            while engine.has_work():
                step(engine)
            decode_s = time.perf_counter() - started_s - prefill_s
        speed = batch * 63 / decode_s
        print(f"\nbatch {batch}: first step {prefill_s * 1e3:.0f} ms, decode {speed:.0f} tok/s")
