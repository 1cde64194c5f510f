"""CPU of a session actor for each turn, over the real bus, with an engine that answers at once.

    python -m bench.bench_session [EPISODES] [AT ONCE] [TOKENIZER FOLDER]     (in tests/)

One turn is a chat from the agent, a request to the engine, its answer, and the reply: four messages
of the bus, all of whose cost in the session process is counted. Opening, verdict and delivery are
spread over the turns of their episode. The target is under 1 ms a turn with the texts of the quick
start, of which under 0.5 ms are the core's own.

Whoever else uses the machine makes the same work cost more, by cold caches and shared cores. So the
cost is taken in many short windows: of two versions of the code, compare the lower tenth of each.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import psutil
import uvloop
from proc.session_process import Scene, generated, session_process, write_small_model

from milepost.actors.arrays import from_bulk
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.messages.engine import Generate
from milepost.messages.shared import Message

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"name": "kai", "field": "pet"}}\n</tool_call>'
SCRIPT = [CALL, CALL, CALL, "cat"]
WARM_UP = 64
WINDOW = 50
"""Episodes: about a tenth of a second."""
CPU_MS_MAX = 1.0


def answering(model: Path) -> Any:
    """An engine that says the script, turn by turn, without a tokenizer in its way."""
    tokenizer = load_tokenizer(model)
    said = [tokenizer.encode(text + "<|im_end|>") for text in SCRIPT]
    opener = tokenizer.encode("<|im_start|>assistant\n").tolist()

    def engine(request: Generate) -> Message:
        prompt = from_bulk(request.token_ids).tolist()
        starts = [i for i, token in enumerate(prompt) if token == opener[0]]
        turn = sum(prompt[i : i + len(opener)] == opener for i in starts) - 1
        return generated(request, said[turn])

    return engine


async def play(scene: Scene, name: str, episodes: int, at_once: int) -> None:
    """This many episodes, at most so many at the same time."""
    todo = iter(range(episodes))

    async def player() -> None:
        for number in todo:
            await scene.episode(f"{name}{number}.0", SCRIPT)

    await asyncio.gather(*(player() for _ in range(at_once)))


def cpu_s(pid: int) -> float:
    """Processor time of all threads so far, exact to less than a scheduler's tick."""
    threads = (Path("/proc") / str(pid) / "task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


async def measure(model: Path, episodes: int, at_once: int) -> dict[str, float]:
    """Costs of a turn in the session process."""
    async with session_process(model) as scene:
        scene.engine = answering(model)
        await play(scene, "warm", WARM_UP, at_once)
        costs_s: list[float] = []
        started_s = time.perf_counter()
        for number in range(max(2, episodes // WINDOW)):
            scene.delivered.clear()
            before_s = cpu_s(scene.pid)
            await play(scene, f"g{number}x", WINDOW, at_once)
            costs_s.append((cpu_s(scene.pid) - before_s) / (WINDOW * len(SCRIPT)))
        turns = len(costs_s) * WINDOW * len(SCRIPT)
        tenth_s, *_, _ = quantiles(costs_s, n=10, method="inclusive")
        return {
            "turns": turns,
            "cpu_ms_per_turn": fmean(costs_s) * 1e3,
            "lower tenth": tenth_s * 1e3,
            "wall_ms_per_turn": (time.perf_counter() - started_s) / turns * 1e3,
            "resident_mib": psutil.Process(scene.pid).memory_info().rss / 2**20,
        }


async def test_a_turn_costs_less_than_a_millisecond_of_the_session_process(tmp_path: Path) -> None:
    """200 turns are played in a quarter of a second, beside everything else."""
    write_small_model(tmp_path)
    figures = await measure(tmp_path, 500, 64)
    print("\n".join(f"session {key:18} {value:10.3f}" for key, value in figures.items()))
    assert figures["cpu_ms_per_turn"] < CPU_MS_MAX


async def main(episodes: int, at_once: int, folder: str) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(folder or name)
        if not folder:
            write_small_model(model)
        for key, value in (await measure(model, episodes, at_once)).items():
            print(f"{key:18} {value:10.3f}")


if __name__ == "__main__":
    words = [*sys.argv[1:], *("1000", "64", "")[len(sys.argv) - 1 :]]
    uvloop.run(main(int(words[0]), int(words[1]), words[2]))
