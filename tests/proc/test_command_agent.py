"""A program as an agent: what it is given, what it may say, and that it goes with its episode."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from unit.agent.kit import ScriptedLine, order

from milepost.actors.agent import Episode, Prompt
from milepost.actors.agent.connectors.command import CommandAgent, CommandError

pytestmark = pytest.mark.timeout(60)

ADDRESS = "http://127.0.0.1:1/sessions/x"


def episode(address: str = ADDRESS) -> Episode:
    return Episode(order(address=address), ScriptedLine())


async def run(code: str, address: str = ADDRESS) -> Episode:
    made = episode(address)
    await CommandAgent([sys.executable, "-c", code]).run(made)
    return made


async def test_it_gets_the_prompt_and_the_address_and_its_last_line_is_the_result() -> None:
    code = (
        "import json, os, sys\n"
        "given = json.load(sys.stdin)\n"
        "print('thinking aloud')\n"
        "solved = given['label'] == 'cat' and os.environ['OPENAI_BASE_URL'].endswith('/x/v1')\n"
        "print(json.dumps({'reward': 0.5, 'metrics': {'solved': float(solved)}}))\n"
    )
    record = (await run(code)).record
    assert (record.reward, record.metrics) == (0.5, {"solved": 1.0})


@pytest.mark.parametrize(
    ("code", "address", "told"),
    [
        ("raise SystemExit('no luck')", ADDRESS, "ended with code 1: no luck"),
        ("print('nothing')", ADDRESS, "its last line is no result"),
        ("print('{\"rewards\": 1}')", ADDRESS, "its last line is no result"),
        ("pass", "", "add \\[actors.session.http\\]"),
    ],
)
async def test_what_is_no_result_is_a_failure_by_name(code: str, address: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        await run(code, address)


async def test_a_harness_takes_its_task_as_an_argument_and_prints_what_it_likes() -> None:
    """Its reward is that of a function, which the run then has."""
    code = "import sys; print('I did', sys.argv[1]); raise SystemExit(len(sys.argv[1:]) != 1)"
    made = episode()
    asked = made.prompt.messages[-1]["content"]
    await CommandAgent([sys.executable, "-c", code, "{prompt}"], prints_result=False).run(made)
    assert made.record.reward is None
    with pytest.raises(CommandError) as failed:
        await CommandAgent([sys.executable, "-c", code, "{prompt}"]).run(made)
    assert f"I did {asked}" in str(failed.value)


async def test_a_task_in_parts_of_text_is_one_argument() -> None:
    """Prompts may be written either way, and a harness must not read a Python list."""
    code = "import sys; raise SystemExit(sys.argv[1] != 'name an animal')"
    parts = [{"type": "text", "text": "name an "}, {"type": "text", "text": "animal"}]
    prompt = Prompt(prompt_id="p", messages=[{"role": "user", "content": parts}])
    made = Episode(replace(order(address=ADDRESS), prompt=prompt), ScriptedLine())
    await CommandAgent([sys.executable, "-c", code, "{prompt}"], prints_result=False).run(made)


@pytest.mark.parametrize("command", [[], "bash agent.sh", [1]])
def test_a_command_that_is_no_list_of_words_is_refused(command: list[str]) -> None:
    with pytest.raises(TypeError, match="a program and its arguments are needed"):
        CommandAgent(command)


async def test_a_cancelled_episode_takes_its_process_and_all_it_started_along(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    script = f"sleep 86398.5 & echo $$ $! > {begun}; wait"
    task = asyncio.create_task(CommandAgent(["bash", "-c", script]).run(episode()))
    pids = [int(word) for word in (await asyncio.to_thread(begun.read_text)).split()]
    processes = [psutil.Process(pid) for pid in pids]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20.0)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_the_bash_example_is_short_enough_to_be_read() -> None:
    script = Path(__file__).parents[2] / "clients" / "bash" / "agent.sh"
    assert len(script.read_text().splitlines()) <= 60
