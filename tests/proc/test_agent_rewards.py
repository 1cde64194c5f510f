"""Synchronous reward functions in real worker processes: one bad call is one failed trajectory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from milepost.actors.agent import Prompt, RewardInput, RewardResult
from milepost.actors.agent.reward import RewardFailed
from milepost.actors.agent.reward_pool import RewardPool

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 1.0


def given(label: Any, text: str = "cat") -> RewardInput:
    """A conversation that ended with this text."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    return RewardInput(
        prompt=Prompt(prompt_id="p", messages=messages[:1], label=label),
        messages=messages,
        status="completed",
    )


def pool_of(name: str, workers: int = 1) -> RewardPool:
    """Workers for a function of the module beside this one."""
    return RewardPool(
        f"proc.agent_rewards:{name}", workers=workers, deadline_s=DEADLINE_S, start_s=30.0
    )


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import users' modules as this process does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


@pytest.fixture
async def pool() -> AsyncIterator[RewardPool]:
    """One worker that does what the label says."""
    made = pool_of("by_label")
    await made.start()
    yield made
    await made.close()


async def pid(pool: RewardPool) -> int:
    """Process of the next call."""
    return int((await pool.score(given("fine"))).metrics["pid"])


async def test_a_function_is_called_with_the_conversation_and_the_label() -> None:
    """What it returns comes back with its metrics."""
    pool = pool_of("exact")
    await pool.start()
    try:
        right, wrong = await asyncio.gather(
            pool.score(given("cat")), pool.score(given("cat", "dog"))
        )
    finally:
        await pool.close()
    assert right == RewardResult(reward=1.0, metrics={"solved": 1.0})
    assert wrong == RewardResult(reward=0.0, metrics={"solved": 0.0})


@pytest.mark.parametrize(
    ("label", "cause"),
    [
        ("raise", "ValueError: cannot parse, at .*agent_rewards.py"),
        ("nan", "reward is nan"),
        ("text", "reward is '1'"),
        ("sys.exit", "SystemExit: 3"),
    ],
)
async def test_a_call_that_fails_leaves_its_worker_alive(
    pool: RewardPool, label: str, cause: str
) -> None:
    """The next call goes to the same process."""
    before = await pid(pool)
    with pytest.raises(RewardFailed, match=cause):
        await pool.score(given(label))
    assert await pid(pool) == before


@pytest.mark.parametrize(
    ("label", "cause"),
    [
        ("loop", "longer than its deadline of 1.0 s"),
        ("fork", "longer than its deadline of 1.0 s"),
        ("segfault", "its process ended with signal 11"),
        ("exit", "its process ended with exit code 3"),
    ],
)
async def test_a_call_that_takes_its_process_down_gets_a_new_one(
    pool: RewardPool, label: str, cause: str
) -> None:
    """Only its own trajectory fails, within the deadline; the process is gone, not left behind."""
    before = await pid(pool)
    started_s = time.monotonic()
    with pytest.raises(RewardFailed, match=cause):
        await pool.score(given(label))
    assert time.monotonic() - started_s < DEADLINE_S + 5.0
    assert await pid(pool) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


async def test_a_function_may_use_signals(pool: RewardPool) -> None:
    """It runs in the main thread of its process; in a thread of ours the alarm would raise."""
    assert (await pool.score(given("alarm"))).reward == 0.5


async def test_what_a_function_prints_does_not_come_between_frames(pool: RewardPool) -> None:
    """It goes to the log."""
    assert (await pool.score(given("print"))).reward == 1.0


async def test_a_busy_event_loop_is_not_the_function_s_fault(pool: RewardPool) -> None:
    """The answer is there when the late timer fires, and the worker's own clock says in time.

    Others count the loop's delay and fail hundreds of good episodes at once under load.
    """
    asked = asyncio.create_task(pool.score(given("wait")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ends_s = time.monotonic() + DEADLINE_S + 0.3
    while time.monotonic() < ends_s:
        pass
    assert (await asked).reward == 1.0


async def test_more_calls_than_workers_wait_without_their_deadline_running() -> None:
    """Ten calls of 0.3 s on two workers take 1.5 s, more than any one of them may."""
    pool = pool_of("by_label", workers=2)
    await pool.start()
    try:
        results = await asyncio.gather(*(pool.score(given("wait")) for _ in range(10)))
    finally:
        await pool.close()
    assert [result.reward for result in results] == [1.0] * 10
    assert len({result.metrics["pid"] for result in results}) == 2


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("proc.agent_rewards:missing", "names no function"),
        ("proc.nothing_here:f", "ModuleNotFoundError"),
    ],
)
async def test_a_function_that_cannot_be_loaded_is_refused_at_the_start(
    path: str, told: str
) -> None:
    """Before the first episode, with its path."""
    pool = RewardPool(path, workers=1, deadline_s=1.0, start_s=30.0)
    with pytest.raises(RewardFailed, match=f"{path} cannot be loaded: .*{told}"):
        await pool.start()
    await pool.close()


async def test_no_worker_is_left_when_the_pool_is_closed() -> None:
    """Not even one that hangs."""
    pool = pool_of("by_label", workers=2)
    await pool.start()
    pids = {await pid(pool), await pid(pool)}
    hanging = asyncio.create_task(pool.score(given("loop")))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(RewardFailed, match="signal 9"):
        await hanging
    assert not pool._starting, "a worker that was killed on purpose is not replaced"
    for gone in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(gone, 0)


async def test_a_worker_that_died_while_it_was_idle_fails_no_call(pool: RewardPool) -> None:
    """Killed by the kernel for want of memory, between two calls: the next one gets another."""
    before = await pid(pool)
    (idle,) = pool._idle
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(30):
        await idle._reading
    assert await pid(pool) != before
    assert len(pool._all) == 1


async def test_whoever_waits_for_a_worker_that_cannot_be_replaced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module was broken after the start. Waiting on would hold the episode, and its room."""
    pool, told = pool_of_module(tmp_path, monkeypatch, breaks="'raise ImportError'")
    await pool.start()
    calls = [asyncio.create_task(pool.score(given("fine"))) for _ in range(3)]
    await asyncio.wait(calls)
    heard = [str(call.exception()) for call in calls]
    assert "exit code 3" in heard[0]
    reason = "no reward worker is left, 3 starts in a row failed"
    assert all(reason in each and "cannot be loaded: ImportError" in each for each in heard[1:])
    with pytest.raises(RewardFailed, match=reason):
        await pool.score(given("fine"))
    await pool.close()
    [said] = told
    assert reason in said


async def test_a_module_that_is_repaired_scores_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that was away, a package being installed: the pool never gives up."""
    pool, told = pool_of_module(tmp_path, monkeypatch, breaks="'raise ImportError'")
    await pool.start()
    with pytest.raises(RewardFailed, match="exit code 3"):
        await pool.score(given("fine"))
    with pytest.raises(RewardFailed, match="3 starts in a row failed"):
        await pool.score(given("fine"))
    (tmp_path / "soon_broken.py").write_text("def reward(given):\n    return 0.25\n")
    await told.recovered.wait()
    assert (await pool.score(given("fine"))).reward == 0.25
    await pool.close()
    assert "episodes are scored again" in told[-1]


async def test_a_worker_whose_first_starts_fail_is_replaced_and_no_episode_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice killed while it imports, as by the kernel for want of memory: at the start of the pool,
    and again when the first worker had to be replaced."""
    fails = tmp_path / "fails"
    fails.write_text("xx")
    (tmp_path / "dies_young.py").write_text(
        "import os, pathlib, signal\n"
        f"fails = pathlib.Path({str(fails)!r})\n"
        "if left := fails.read_text():\n"
        "    fails.write_text(left[1:])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def reward(given):\n"
        "    if given.label == 'die':\n"
        "        fails.write_text('xx')\n"
        "        os._exit(3)\n"
        "    return 0.5\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    told = Told()
    pool = RewardPool(
        "dies_young:reward", workers=1, deadline_s=30.0, start_s=30.0, pause_s=0.01, tell=told
    )
    await pool.start()
    with pytest.raises(RewardFailed, match="exit code 3"):
        await pool.score(given("die"))
    results = await asyncio.gather(*(pool.score(given("fine")) for _ in range(3)))
    await pool.close()
    assert [each.reward for each in results] == [0.5] * 3
    assert told == [], "nobody had to hear of it"


async def test_a_process_that_never_comes_up_is_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies_young.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    pool = RewardPool(
        "dies_young:reward", workers=2, deadline_s=1.0, start_s=30.0, pause_s=0.01, tell=Told()
    )
    with pytest.raises(RewardFailed, match=r"no reward worker started in 3 tries: .*exit code 9"):
        await pool.start()
    await pool.close()


class Told(list[str]):
    """What the pool said to people, and whether it has recovered."""

    def __init__(self) -> None:
        super().__init__()
        self.recovered = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        if "again" in text:
            self.recovered.set()


def pool_of_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, breaks: str
) -> tuple[RewardPool, Told]:
    """A function whose first call leaves these words in its module, and ends its process."""
    (folder / "soon_broken.py").write_text(
        "import os\n"
        "def reward(given):\n"
        "    with open(__file__, 'w') as file:\n"
        f"        file.write({breaks})\n"
        "    os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = Told()
    pool = RewardPool(
        "soon_broken:reward", workers=1, deadline_s=30.0, start_s=30.0, pause_s=0.05, tell=told
    )
    return pool, told
