"""The HTTP door under load, with the real Qwen3 tokenizer, against figures of a rival.

    python -m bench.bench_session_http FOLDER [NAME ...] [words=FILE]     (in tests/)

FOLDER has the tokenizer and chat template of Qwen3. What is said has 43 different words, or those
of a FILE: the actor remembers words, so it matters how many there are. The session actor is a
process of its own, on one core; engine, buffer and clients are played by this process, on another.
The engine is a real actor of the bus that answers at once, or after a set time. CPU time is the
session process's, so it also holds on a busy machine; times on the clock do not, unless nobody else
gets the cores meanwhile (`chrt -f 10 python -m ...`, as root).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import uvloop
from bench.http_load import Chat, Connection, prose, quantile, speak, watch_health
from proc.session_process import Scene, generated, session_process, write_small_model

from milepost.actors.arrays import to_bulk
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.configs.actors import HttpConfig
from milepost.configs.run import LimitsConfig
from milepost.messages.engine import Generate
from milepost.messages.shared import Message, SamplingParams

RIVAL = {
    "s1_turns_per_s": 119.0,
    "s1_cpu_ms": 8.3,
    "s2_added_p50_ms": 6.2,
    "s2_added_p99_ms": 11.6,
    "s3_turns_per_s": 77.0,
    "s4_health_p99_ms": 1710.0,
    "s6_first_turn_s": 2.40,
    "s7_samples_s": 1.73,
    "s7_blocked_ms": 1730.0,
    "s8_start_mib": 588.0,
    "s8_session_mib": 34.0,
}
"""Of another session server, measured on two cores of the same kind (docs/performance.md)."""

WANTED = {
    "s1_turns_per_s": 600.0,
    "s1_cpu_ms": 1.7,
    "s2_added_p50_ms": 2.0,
    "s2_added_p99_ms": 5.0,
    "s4_health_p99_ms": 20.0,
    "growth_ratio": 1.5,
    "s7_cpu_ms": 50.0,
    "s8_start_mib": 150.0,
    "s8_session_mib": 2.0,
}
"""At least so many a second, at most so much of anything else."""


SEEDS = count()
"""No two chats say the same: texts that came before are remembered."""


class Engine:
    """Says texts of a set length, at once or after a while."""

    def __init__(self, scene: Scene, model: Path, words: int, delay_s: float = 0.0) -> None:
        tokenizer = load_tokenizer(model)
        generator = random.Random(0)
        texts = [prose(generator, words) for _ in range(64)]
        self._said = [tokenizer.encode(text + "<|im_end|>") for text in texts]
        self._scene = scene
        self._count = 0
        self.delay_s = delay_s
        scene.engine = self
        scene.after = self._after

    def __call__(self, request: Generate) -> Message:
        self._count += 1
        return generated(request, self._said[self._count % len(self._said)])

    def _after(self, answer: Callable[[], None]) -> None:
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, answer)
        else:
            answer()


def cpu_s(scene: Scene) -> float:
    """CPU time of the session process so far, to the microsecond: all its threads."""
    tasks = Path(f"/proc/{scene.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def play(chats: list[Chat], turns: int) -> float:
    """Seconds for so many turns of each."""

    async def one(chat: Chat) -> None:
        for _ in range(turns):
            await chat.turn()

    started_s = time.perf_counter()
    await asyncio.gather(*map(one, chats))
    return time.perf_counter() - started_s


async def opened(scene: Scene, number: int, words: int, first_words: int = 0) -> list[Chat]:
    """So many chats."""
    url = str(scene.facts["http"])
    chats = [Chat(url, next(SEEDS), words) for _ in range(number)]
    for chat in chats:
        await chat.open(first_words)
    return chats


async def closed(chats: list[Chat]) -> None:
    """End them."""
    for chat in chats:
        assert chat.connection is not None
        await chat.connection.send("DELETE", f"/sessions/{chat.session}")
        chat.connection.close()


async def throughput(scene: Scene, model: Path) -> dict[str, float]:
    """S1: 64 sessions of 16 turns, 4.4k tokens each. S3: 256 open chats."""
    engine = Engine(scene, model, 100)
    await closed(await _played(scene, 16, 4))
    before_s = cpu_s(scene)
    chats = await opened(scene, 64, 110)
    seconds = await play(chats, 16)
    spent_s = cpu_s(scene) - before_s
    await closed(chats)
    figures = {"s1_turns_per_s": 1024 / seconds, "s1_cpu_ms": spent_s / 1024 * 1e3}
    figures["s1_turns_per_cpu_s"] = 1024 / spent_s
    engine.delay_s = 0.05
    before_s = cpu_s(scene)
    chats = await opened(scene, 256, 110)
    seconds = await play(chats, 6)
    figures["s3_turns_per_s"] = 1536 / seconds
    figures["s3_cpu_ms"] = (cpu_s(scene) - before_s) / 1536 * 1e3
    await closed(chats)
    return figures


async def _played(scene: Scene, number: int, turns: int) -> list[Chat]:
    chats = await opened(scene, number, 110)
    await play(chats, turns)
    return chats


async def latency(scene: Scene, model: Path) -> dict[str, float]:
    """S2: 8 sessions that are not in step; in turns with them, the engine asked over the bus alone.

    What the session adds is the one less the other: rendering, tokenizing, the row, and HTTP.
    """
    Engine(scene, model, 100)
    chats = await opened(scene, 8, 110)
    generator = random.Random(1)
    bare_s: list[float] = []
    row = to_bulk(load_tokenizer(model).encode(prose(generator, 2000)))

    async def ask(name: str) -> None:
        request = Generate(request_id=name, session_id="", token_ids=row, sampling=SamplingParams())
        started_s = time.perf_counter()
        await scene.buses["agent-0"].ask("engine-0", request, deadline_s=30.0)
        bare_s.append(time.perf_counter() - started_s)

    async def one(chat: Chat) -> None:
        for number in range(16):
            await asyncio.sleep(generator.uniform(0.02, 0.1))
            await ask(f"{chat.session}/{number}")
            await asyncio.sleep(generator.uniform(0.02, 0.1))
            await chat.turn()

    await asyncio.gather(*map(one, chats))
    seen = [each for chat in chats for each in chat.latencies_s]
    await closed(chats)
    bare_p50_s = quantile(bare_s, 0.5)
    return {
        "s2_p50_ms": quantile(seen, 0.5) * 1e3,
        "s2_p99_ms": quantile(seen, 0.99) * 1e3,
        "s2_bare_p50_ms": bare_p50_s * 1e3,
        "s2_bare_p99_ms": quantile(bare_s, 0.99) * 1e3,
        "s2_added_p50_ms": (quantile(seen, 0.5) - bare_p50_s) * 1e3,
        "s2_added_p99_ms": (quantile(seen, 0.99) - bare_p50_s) * 1e3,
    }


async def long_prompts(scene: Scene, model: Path) -> dict[str, float]:
    """S4: /health while 8 prompts of 128k tokens arrive. S6: their first turn."""
    Engine(scene, model, 20)
    chats = await opened(scene, 8, 20, 108_000)
    idle_s: list[float] = []
    watching = asyncio.create_task(watch_health(str(scene.facts["http"]), idle_s, 0.005))
    await asyncio.sleep(2.0)
    await _stopped(watching)
    gaps_s: list[float] = []
    watching = asyncio.create_task(watch_health(str(scene.facts["http"]), gaps_s, 0.005))
    before_s = cpu_s(scene)
    await play(chats, 1)
    spent_s = cpu_s(scene) - before_s
    await _stopped(watching)
    await closed(chats)
    return {
        "s4_idle_health_p99_ms": quantile(idle_s, 0.99) * 1e3,
        "s4_health_p50_ms": quantile(gaps_s, 0.5) * 1e3,
        "s4_health_p99_ms": quantile(gaps_s, 0.99) * 1e3,
        "s4_health_max_ms": max(gaps_s) * 1e3,
        "s6_first_turn_s": quantile(chats[0].latencies_s, 0.5),
        "s6_cpu_s_each": spent_s / 8,
    }


async def growth(scene: Scene, model: Path) -> dict[str, float]:
    """Cost of turn 8 and of turn 128 at 500 new tokens a turn, measured in alternation."""
    Engine(scene, model, 200)
    old = await opened(scene, 6, 220)
    await play(old, 116)
    spent_s = {"turn_8": 0.0, "turn_128": 0.0}
    for _ in range(6):
        young = await opened(scene, 6, 220)
        await play(young, 6)
        for name, chats in (("turn_8", young), ("turn_128", old)):
            before_s = cpu_s(scene)
            await play(chats, 2)
            spent_s[name] += cpu_s(scene) - before_s
        await closed(young)
    await closed(old)
    figures = {f"growth_{name}_cpu_ms": s / (6 * 6 * 2) * 1e3 for name, s in spent_s.items()}
    added_ms = figures["growth_turn_128_cpu_ms"] - figures["growth_turn_8_cpu_ms"]
    ratio = spent_s["turn_128"] / spent_s["turn_8"]
    return {**figures, "growth_added_us": added_ms * 1e3, "growth_ratio": ratio}


async def long_sessions(scene: Scene, model: Path) -> dict[str, float]:
    """S7: samples of 63k tokens in 64 turns. S8: memory of such sessions."""
    Engine(scene, model, 400)
    process = psutil.Process(scene.pid)
    figures = {"s8_start_mib": process.memory_info().rss / 2**20}
    warm = await opened(scene, 2, 430)
    await play(warm, 64)
    before = process.memory_info().rss
    chats = await opened(scene, 8, 430)
    await play(chats, 64)
    figures["s8_session_mib"] = (process.memory_info().rss - before) / 8 / 2**20
    gaps_s: list[float] = []
    watching = asyncio.create_task(watch_health(str(scene.facts["http"]), gaps_s, 0.002))
    connection = Connection(str(scene.facts["http"]))
    before_s, taken_s = cpu_s(scene), []
    for chat in chats:
        started_s = time.perf_counter()
        status, body = await connection.send("POST", f"/sessions/{chat.session}/samples", b"{}")
        assert status == 200, body
        taken_s.append(time.perf_counter() - started_s)
    await _stopped(watching)
    figures["s7_samples_s"] = quantile(taken_s, 0.5)
    figures["s7_cpu_ms"] = (cpu_s(scene) - before_s) / len(chats) * 1e3
    figures["s7_blocked_ms"] = max(gaps_s) * 1e3
    figures["s7_reply_mib"] = len(body) / 2**20
    await closed([*warm, *chats])
    return figures


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


PARTS: dict[str, Callable[[Scene, Path], Awaitable[dict[str, float]]]] = {
    "throughput": throughput,
    "latency": latency,
    "growth": growth,
    "long_sessions": long_sessions,
    "long_prompts": long_prompts,
}


async def measure(model: Path, names: list[str], **config: Any) -> dict[str, float]:
    """The figures of these parts, each in a session process of its own."""
    figures: dict[str, float] = {}
    limits = LimitsConfig(turns_max=1000, tokens_max=200_000)
    for name in names:
        async with session_process(
            model, http=HttpConfig(), limits=limits, context_tokens_max=200_000, **config
        ) as scene:
            cores = sorted(os.sched_getaffinity(0))
            psutil.Process(scene.pid).cpu_affinity(cores[:1])
            psutil.Process().cpu_affinity(cores[-1:])
            figures |= await PARTS[name](scene, model)
            psutil.Process().cpu_affinity(cores)
    return figures


async def test_a_turn_over_http_costs_less_than_two_milliseconds(tmp_path: Path) -> None:
    """The same texts as the rival's, but with a small tokenizer, which needs no network."""
    write_small_model(tmp_path)
    figures = await measure(tmp_path, ["throughput"])
    told(figures)
    assert figures["s1_cpu_ms"] < 4.0, "a small vocabulary makes three times as many tokens"


def told(figures: dict[str, float]) -> None:
    """Print figures, what is wanted of them, and ratios."""
    for key, value in figures.items():
        line = f"{key:24} {value:10.3f}"
        is_rate = key.endswith("_per_s")
        if (rival := RIVAL.get(key)) is not None:
            ratio = value / rival if is_rate else rival / value
            line += f"   rival {rival:8.2f}   {ratio:7.1f} times better"
        if (wanted := WANTED.get(key)) is not None:
            is_met = value >= wanted if is_rate else value <= wanted
            line += f"   wanted {wanted:g}: {'met' if is_met else 'MISSED'}"
        print(line)


if __name__ == "__main__":
    folder, *chosen = sys.argv[1:]
    for word in [each for each in chosen if each.startswith("words=")]:
        speak(Path(word.removeprefix("words=")))
        chosen.remove(word)
    told(uvloop.run(measure(Path(folder), chosen or list(PARTS))))
