"""An engine actor of kind sglang beside its own bare server: tokens/s, pauses, memory, log-probs.

    python -P tests/gpu/sglang_speed.py [small] [publications]

One JSON object a line. `small` runs the same steps with a tiny model on the CPU; `publications`
leaves the tokens/s out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import aiohttp
import numpy as np
import torch
from contract.kit import config_json
from gpu.qwen3_06b import CONFIG, Weights, prompts
from proc.engine_process import Scene, engine_process

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.messages.engine import (
    ActivateEpoch,
    EpochAnswer,
    EpochConfirmed,
    Generated,
    PauseMode,
    PrepareEpoch,
    Score,
    Scored,
    WeightBucket,
)

SMALL = "small" in sys.argv
RATES = "publications" not in sys.argv
DEVICE = os.environ.get("MILEPOST_ENGINE_DEVICE", "cpu" if SMALL else "cuda:0")
UPDATES = os.environ.get("MILEPOST_UPDATES", "tensors").split(",")
STAGING = os.environ.get("MILEPOST_STAGING", "")
MODEL = config_json() if SMALL else CONFIG
BATCHES = (4, 8) if SMALL else (64, 256)
PROMPT, NEW = (16, 32) if SMALL else (128, 512)
ROUNDS = 2


def tell(what: str, **figures: Any) -> None:
    """One line of the report."""
    print(json.dumps({"what": what, **figures}), flush=True)  # noqa: T201


def memory_mb() -> list[int]:
    """Memory in use on each GPU."""
    if SMALL:
        return []
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(command, text=True).split()]


async def stage(scene: Scene, version: int, weights: Weights) -> float:
    """Everything of an epoch but its activation; how long it took."""
    started_s = time.perf_counter()
    buckets = weights.buckets()
    prepare = PrepareEpoch(version=version, tensors=weights.specs, num_buckets=len(buckets))
    answers = [await scene.ask("publisher", prepare)]
    for index, names in enumerate(buckets):
        bulks = tuple(weights.bulk(name) for name in names)
        bucket = WeightBucket(version=version, index=index, names=tuple(names), tensors=bulks)
        answers.append(await scene.ask("publisher", bucket))
    for answer in answers:
        assert isinstance(answer, EpochAnswer)
        assert answer.ok, answer
    return round(time.perf_counter() - started_s, 3)


async def activate(scene: Scene, version: int, weights: Weights, mode: PauseMode) -> dict[str, Any]:
    """Serve what was staged; how long that took, and generation paused."""
    staged_s = time.perf_counter()
    activate = ActivateEpoch(version=version, mode=mode, digest=weights.digest)
    confirmed = await scene.ask("publisher", activate)
    assert isinstance(confirmed, EpochConfirmed), confirmed
    return {
        "version": version,
        "mode": str(mode),
        "in_flight": confirmed.num_in_flight,
        "pause_ms": round(confirmed.pause_s * 1e3, 1),
        "activate_s": round(time.perf_counter() - staged_s, 3),
    }


async def bare_rate(url: str, rows: list[Any], seed: int) -> float:
    """Tokens/s of the server itself, asked for the same replies as the actor asks for."""

    async def one(session: aiohttp.ClientSession, row: Any) -> int:
        params = {"temperature": 1.0, "max_new_tokens": NEW, "sampling_seed": seed}
        body = {
            "input_ids": row.tolist(), "sampling_params": params, "return_logprob": True,
            "extra_key": f"bare-{seed}",
        }  # fmt: skip
        async with session.post(f"{url}/generate", json=body) as answer:
            return len((await answer.json())["output_ids"])

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        started_s = time.perf_counter()
        counts = await asyncio.gather(*(one(session, row) for row in rows))
        return sum(counts) / (time.perf_counter() - started_s)


async def actor_rate(scene: Scene, rows: list[Any], name: str) -> float:
    """Tokens/s through bus and actor."""
    started_s = time.perf_counter()
    asked = [scene.generate(f"{name}-{n}", row, tokens_max=NEW) for n, row in enumerate(rows)]
    count = 0
    for reply in await asyncio.gather(*asked):
        assert isinstance(reply, Generated), reply
        count += len(from_bulk(reply.token_ids))
    return count / (time.perf_counter() - started_s)


async def rates(scene: Scene) -> None:
    """Both, in turns, so that a slow moment hits both."""
    url = scene.facts["url"]
    vocabulary = MODEL["vocab_size"]
    await bare_rate(url, prompts(BATCHES[0], PROMPT, vocabulary, 0), 0)
    for batch in BATCHES:
        bare, ours = [], []
        for turn in range(ROUNDS):
            rows = prompts(batch, PROMPT, vocabulary, 100 * batch + turn)
            bare.append(await bare_rate(url, rows, 1 + turn + batch))
            rows = prompts(batch, PROMPT, vocabulary, 100 * batch + 50 + turn)
            ours.append(await actor_rate(scene, rows, f"b{batch}-{turn}"))
        tell(
            "tokens_per_s",
            batch=batch,
            new_tokens=NEW,
            bare=[round(rate) for rate in bare],
            actor=[round(rate) for rate in ours],
            ratio_of_best=round(max(ours) / max(bare), 3),
        )


async def log_probs(scene: Scene, weights: Weights) -> None:
    """Sampled and scored log-probs against transformers with the same weights."""
    import transformers

    rows = prompts(4, 60, MODEL["vocab_size"], 7)
    asked = [scene.generate(f"p-{n}", row, tokens_max=64) for n, row in enumerate(rows)]
    replies = await asyncio.gather(*asked)
    scored = await scene.ask("publisher", Score(rows=(to_bulk(rows[0]),)))
    assert isinstance(scored, Scored)
    config = transformers.AutoConfig.for_model(**MODEL)
    make: Any = transformers.AutoModelForCausalLM
    for dtype in (torch.bfloat16, torch.float32):
        model = make.from_config(config, dtype=dtype)
        model.load_state_dict(weights.tensors, strict=False)
        model.tie_weights()
        model = model.to(DEVICE).eval()
        found = []
        for row, reply in zip(rows, replies, strict=True):
            assert isinstance(reply, Generated)
            tokens = from_bulk(reply.token_ids)
            ids = torch.tensor(np.concatenate([row, tokens]).tolist(), device=DEVICE)
            with torch.inference_mode():
                table = model(ids[None]).logits[0].float().log_softmax(-1)
            own = table[len(row) - 1 : -1].gather(1, ids[len(row) :, None])[:, 0].cpu().numpy()
            found.append(np.abs(own - from_bulk(reply.logprobs)))
        difference = np.concatenate(found)
        tell(
            "log_prob_difference",
            against=str(dtype),
            mean=round(float(difference.mean()), 6),
            max=round(float(difference.max()), 5),
        )
        del model


async def pauses(scene: Scene, versions: list[Weights], first: int) -> int:
    """Publications with 64 replies in flight, in both modes."""
    version = first
    for mode in (PauseMode.IN_PLACE, PauseMode.RETRACT) * 2:
        rows = prompts(BATCHES[0], PROMPT, MODEL["vocab_size"], version)
        version += 1
        weights = versions[version % 2]
        stage_s = await stage(scene, version, weights)
        asked = [
            scene.generate(f"v{version}-{n}", row, tokens_max=NEW) for n, row in enumerate(rows)
        ]
        told = await activate(scene, version, weights, mode)
        replies = await asyncio.gather(*asked)
        spans = [len(reply.spans) for reply in replies if isinstance(reply, Generated)]
        tell(
            "publication",
            **told,
            stage_s=stage_s,
            whole=len(spans),
            two_versions=sum(n > 1 for n in spans),
        )
    return version


async def main() -> None:
    """Each way of weights in an engine of its own; speed once."""
    versions = [Weights(0, MODEL), Weights(1, MODEL)]
    for number, update in enumerate(UPDATES):
        sglang: dict[str, Any] = {
            "python": os.environ.get("MILEPOST_SGLANG_PYTHON", ""),
            "environment": json.loads(os.environ.get("MILEPOST_SGLANG_ENVIRONMENT", "{}")),
            "options": json.loads(os.environ.get("MILEPOST_SGLANG_OPTIONS", "{}")),
            "update": update,
            "staging_device": STAGING if update == "distributed" else "",
        }
        started_s = time.perf_counter()
        async with engine_process(
            MODEL, dtype="bfloat16", context_tokens=256 if SMALL else 1024, ask_s=280.0,
            kind="sglang", device=DEVICE, slots=256, running_max=256, sglang=sglang,
        ) as scene:  # fmt: skip
            ready = asyncio.create_task(scene.says_it_needs_weights.wait())
            ended = asyncio.create_task(scene.process.wait())
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if ended.done():
                log = scene.folder / "logs" / "engine-0.server.log"
                tell("failed", update=update, log=log.read_text()[-3000:] if log.exists() else "")
                continue
            tell("start", update=update, ready_s=round(time.perf_counter() - started_s, 1),
                 facts=scene.facts)  # fmt: skip
            stage_s = await stage(scene, 0, versions[0])
            told = await activate(scene, 0, versions[0], PauseMode.RETRACT)
            tell("first_publication", **told, stage_s=stage_s)
            await log_probs(scene, versions[0])
            tell("memory_mb", update=update, gpus=memory_mb())
            await pauses(scene, versions, 0)
            if number == 0 and RATES:
                await rates(scene)
            statistics = scene.heartbeats[-1].statistics
            tell("heartbeat", update=update, statistics={
                key: statistics[key] for key in ("generated_tokens", "cache_tokens_free", "version")
            })  # fmt: skip
            await scene.terminate()


if __name__ == "__main__":
    asyncio.run(main())
