"""Entry of the checking process: `python -P -m milepost.actors.agent.conformance FILE [WORD ...]`.

FILE is a topology as JSON; the words are those of a program that comes as a guest, and is checked
in the place of the topology's agent. One JSON object is printed for each check, as soon as it is
done, on a descriptor of its own: what the agent prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from milepost.actors.agent.conformance.bench import AT_ONCE, Bench
from milepost.actors.agent.conformance.checks import CHECKS, HARNESS_CHECKS, Check
from milepost.actors.agent.conformance.harness import harness_session
from milepost.actors.agent.conformance.program import visiting
from milepost.actors.agent.connectors.command import CommandAgent
from milepost.actors.agent.episodes import Rewards
from milepost.actors.agent.outcome import tell_error
from milepost.actors.agent.reward import RewardFailed
from milepost.actors.agent.run import AgentError, make_agent, open_rewards
from milepost.actors.lifeline import tie_to_parent
from milepost.actors.rollout.prompts import PromptError, load_train_prompts
from milepost.configs.topology import Topology
from milepost.messages.shared import Prompt

PROMPTS_MAX: Final = 16
PROGRAMS_AT_ONCE: Final = 32
"""Each is a process; 512 of them measure the machine."""
HELLO: Final = Prompt(
    prompt_id="check", messages=[{"role": "user", "content": "What is 2 + 2?"}], label="4"
)
STARTS: Final = "The agent, its prompts and its reward function load and start."
LEAVES: Final = "A program that came as a guest leaves when the run ends, and ends well."


class CheckResult(Struct, frozen=True, kw_only=True):
    """One line of the output."""

    check: str
    sentence: str
    problems: list[str]
    seconds: float


def main() -> int:
    """Run every check; 0 when all hold, 1 when not, 2 when the agent cannot be started."""
    tie_to_parent()
    # Episodes fail here on purpose, and each failure that matters is told below.
    logging.disable(logging.WARNING)
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    topology = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Topology)
    command, folder = sys.argv[2:], Path(sys.argv[1]).parent
    return asyncio.run(_check(topology, command, folder, sink))


async def _check(topology: Topology, command: list[str], folder: Path, sink: BinaryIO) -> int:
    started_s = time.monotonic()
    try:
        prompts = _prompts(topology)
        workers = topology.actors.agent.reward_workers if topology.actors.agent else 1
        async with open_rewards(topology, workers) as rewards:
            if not command:
                return await _check_class(topology, prompts, rewards, sink, folder)
            async with visiting(command, folder) as program:
                _write(sink, "starts", STARTS, [], started_s)
                bench = Bench(program.agent, prompts, rewards, topology, is_elsewhere=True)
                code = await _run_checks(bench, sink)
                started_s = time.monotonic()
                problem = await program.say_goodbye()
                _write(sink, "leaves", LEAVES, [problem] if problem else [], started_s)
                return 1 if problem else code
    except (AgentError, ImportError, OSError, PromptError, RewardFailed, ValueError) as error:
        _write(sink, "starts", STARTS, [tell_error(error)], started_s)
        return 2


async def _check_class(
    topology: Topology, prompts: list[Prompt], rewards: Rewards, sink: BinaryIO, folder: Path
) -> int:
    started_s = time.monotonic()
    config, session = topology.actors.agent, topology.actors.session
    assert config is not None, "there is nothing to check"
    options = topology.data.options if topology.data else {}
    agent = make_agent(config.agent, config.options, options)
    await agent.start()
    try:
        if session is None or session.http is None:
            _write(sink, "starts", STARTS, [], started_s)
            return await _run_checks(Bench(agent, prompts, rewards, topology), sink)
        async with harness_session(topology, folder) as door:
            _write(sink, "starts", STARTS, [], started_s)
            is_command = isinstance(agent, CommandAgent)
            at_once = PROGRAMS_AT_ONCE if is_command else AT_ONCE
            bench = Bench(agent, prompts, rewards, topology, door, at_once, is_elsewhere=is_command)
            return await _run_checks(bench, sink, HARNESS_CHECKS)
    finally:
        await agent.stop()


def _prompts(topology: Topology) -> list[Prompt]:
    if topology.data is None or not topology.data.prompts:
        return [HELLO]
    return load_train_prompts(topology.data, topology.run.seed)[:PROMPTS_MAX]


async def _run_checks(bench: Bench, sink: BinaryIO, checks: tuple[Check, ...] = CHECKS) -> int:
    code = 0
    for check in checks:
        started_s = time.monotonic()
        problems = [problem async for problem in check(bench)]
        _write(sink, check.__name__, check.__doc__ or "", problems, started_s)
        code = 1 if problems else code
    return code


def _write(sink: BinaryIO, name: str, sentence: str, problems: list[str], started_s: float) -> None:
    seconds = round(time.monotonic() - started_s, 3)
    result = CheckResult(check=name, sentence=sentence, problems=problems, seconds=seconds)
    sink.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    # Code that was left behind must not hold up the end.
    code = main()
    sys.stderr.flush()
    os._exit(code)
