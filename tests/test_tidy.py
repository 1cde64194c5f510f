"""The house rules hold in every file; and each rule does find what it bans."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from tidy_rules import ROOMS, RULES, Source, broad_excepts, guessed_fields, sleeping_tests

ROOT: Final = Path(__file__).parent.parent

ALLOWED: Final[dict[tuple[str, str], str]] = {
    ("broad_excepts", "actors/__main__.py"): "top of an actor's process: the log gets the reason",
    ("broad_excepts", "actors/agent/episode.py"): "what a report raised, it raises again",
    ("broad_excepts", "actors/recorder/replay/playing.py"): "what a core raised, it raises again",
    ("broad_excepts", "actors/session/foreign.py"): "user code may raise anything; it is told",
    ("broad_excepts", "actors/shell.py"): "top of an actor's process; work of the user's own",
    ("broad_excepts", "launch/display/threaded.py"): "raised again to whoever tells the next thing",
    ("broad_excepts", "supervisor/probe.py"): "user code may raise anything; it is told",
    ("broad_excepts", "supervisor/recording/recorder.py"): "its end is the run's, by name",
    ("broad_excepts", "supervisor/run.py"): "top of the supervisor: the run is told why",
    ("broad_excepts", "supervisor/shell.py"): "as above; and a display never ends a run",
    ("pickling", "actors/engine/sglang/payload.py"): "the server's own form, written, never read",
    ("pickling", "actors/trainer/fsdp/stored.py"): "the error alone, of what torch itself reads",
    ("sleeping_tests", "tests/proc/system/agents.py"): "an environment that takes its time",
    ("sleeping_tests", "tests/proc/trivial.py"): "a process that hangs is what its tests need",
}
"""(rule, file) -> why it may."""


@cache
def sources() -> list[Source]:
    paths = [path for room in (*ROOMS, "tests") for path in (ROOT / room).rglob("*.py")]
    return [Source(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_is_tidy(rule: object) -> None:
    assert callable(rule)
    name = getattr(rule, "__name__", "")
    found = [
        f"{source.path}:{line}: error: {text}"
        for source in sources()
        if (name, str(source.path)) not in ALLOWED and source.path.name != "tidy_rules.py"
        for line, text in rule(source)
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_exception_from_a_rule_is_still_needed() -> None:
    by_name = {rule.__name__: rule for rule in RULES}
    for name, path in ALLOWED:
        source = Source(Path(path), (ROOT / path).read_text(encoding="utf-8"))
        assert list(by_name[name](source)), f"{path} no longer needs its exception from {name}"


BAD: Final = {
    "long_files": "x = 1\n" * 401,
    "long_functions": "def f():\n" + "    x = 1\n" * 70,
    "pickling": "from pickle import loads",
    "cancelled_receives": "await asyncio.wait_for(x, 1)",
    "unbounded_queues": "q = asyncio.Queue()",
    "blocking_sleeps": "async def f():\n    time.sleep(1)",
    "sleeping_tests": "await asyncio.sleep(0.1)",
    "guessed_fields": "getattr(config.actors, name)",
    "open_ended_sockets": "s = context.socket(zmq.DEALER)",
    "broad_excepts": "try:\n    f()\nexcept Exception:\n    pass",
    "leftovers": "# FIX" + "ME later",
}
ALSO_BAD: Final = {
    "pickling": "import dill",
    "cancelled_receives": "async with asyncio.timeout(1):\n    await socket.recv_multipart()",
    "unbounded_queues": "q = queue.SimpleQueue()",
    "sleeping_tests": "from unittest.mock import patch",
    "broad_excepts": "try:\n    f()\nexcept:\n    pass",
    "leftovers": "path = '/wo" + "rk/x'",
}
GOOD: Final = {
    "cancelled_receives": "async with asyncio.timeout(1):\n    await process.wait()",
    "unbounded_queues": "q = asyncio.Queue(maxsize=3)",
    "blocking_sleeps": "def f():\n    time.sleep(1)",
    "sleeping_tests": "await asyncio.sleep(0)",
    "guessed_fields": "getattr(module, name)",
    "open_ended_sockets": "s = context.socket(zmq.DEALER)\ns.linger = 0\ns.set_hwm(3)",
    "broad_excepts": "try:\n    f()\nexcept OSError:\n    pass",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_finds_what_it_bans_and_nothing_else(rule: object) -> None:
    """A rule that finds nothing any more would pass for ever."""
    assert callable(rule)
    name = getattr(rule, "__name__", "")
    folder = "tests" if rule is sleeping_tests else "actors"

    def findings(text: str) -> list[tuple[int, str]]:
        if text.startswith(("await", "async with")):
            text = f"async def main():\n{_indent(text)}\n"
        return list(rule(Source(Path(folder) / "x.py", text)))

    assert len(findings(BAD[name])) == 1
    assert len(findings(ALSO_BAD.get(name, BAD[name]))) == 1
    assert findings(GOOD.get(name, "x = 1")) == []


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def test_rules_about_the_product_leave_tests_alone() -> None:
    source = Source(Path("tests/x.py"), "getattr(config, 'a')\ntry:\n    f()\nexcept:\n    pass\n")
    assert [*guessed_fields(source), *broad_excepts(source)] == []


def test_no_folder_is_a_drawer_for_everything() -> None:
    """What has no noun lands there, and is never found again."""
    drawers = {"utils", "util", "helpers", "common", "misc", "lib"}
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.stem in drawers]
    assert not found, f"name what it owns: {found}"


def test_no_file_of_a_run_or_of_a_build_is_committed() -> None:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tracked = listing.stdout.splitlines()
    strays = [name for name in tracked if name.endswith((".pyc", ".egg-info", ".orig", ".rej"))]
    assert not strays
    big = [name for name in tracked if (ROOT / name).is_file() and _size(name) > 512 * 1024]
    assert not big, f"files over 512 KiB do not belong here: {big}"


def _size(name: str) -> int:
    return (ROOT / name).stat().st_size
