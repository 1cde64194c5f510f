"""Check an agent offline: shapes, limits, errors, cancellation, 512 episodes at once.

TARGET is MODULE:CLASS; or a recipe or topology file whose agent, prompts and reward function are
taken; or the command of a program in any language that joins runs as a guest, with {invitation}
where the path of its invitation goes:

    milepost agent-check my_module:MyAgent
    milepost agent-check "node build/examples/echo.js {invitation}"

A harness that knows only an address and a key is a command, too. Each episode is a process of it,
with OPENAI_BASE_URL or ANTHROPIC_BASE_URL at the HTTP door of a real session:

    milepost agent-check --command "bash clients/bash/agent.sh"
    milepost agent-check --command "harness -m {prompt}" --option prints_result=false --reward a:f

The model is a script, so nothing is trained, nothing is downloaded, and no engine runs; the
session's rules and the verdicts are those of a run. Exit code 0: every check holds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from milepost.configs.actors import AgentConfig, HttpConfig, SessionConfig
from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import DataConfig, RunConfig
from milepost.configs.topology import ActorsConfig, Topology
from milepost.launch.exits import Exit
from milepost.launch.options import read_options

PLACE = "{invitation}"
COMMAND_AGENT = "milepost.actors.agent.connectors.command:CommandAgent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "target", metavar="TARGET", nargs="?", help="class, recipe, topology or command of a guest"
    )
    parser.add_argument(
        "--command", default="", metavar="WORDS", help="command of a harness, in place of TARGET"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="argument of the class"
    )
    parser.add_argument("--prompts", default="", help="FILE.jsonl or MODULE:FUNCTION")
    parser.add_argument("--reward", default="", metavar="MODULE:FUNCTION", help="reward function")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each check")


def run(arguments: argparse.Namespace) -> int:
    """Check in a process of its own, and print what is found as it is found."""
    if bool(arguments.target) == bool(arguments.command):
        what = "one thing is checked: TARGET or --command"
        raise ConfigError([Problem(what, "TARGET", "name one of the two")])
    topology = _harness(arguments) if arguments.command else _topology(arguments)
    is_guest = not arguments.command and PLACE in arguments.target
    program = shlex.split(arguments.target) if is_guest else []
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="milepost-agent-check-") as folder:
        file = Path(folder) / "topology.json"
        file.write_bytes(msgspec.json.encode(topology))
        command = [sys.executable, "-P", "-m", "milepost.actors.agent.conformance", str(file)]
        with subprocess.Popen([*command, *program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                results.append(json.loads(line))
                for text in [line.decode().rstrip()] if arguments.json else _lines(results[-1]):
                    print(text, flush=True)
    if process.returncode not in {0, 1, 2}:
        told = f"the agent ended the checking process with exit code {process.returncode}"
        print(f"error: {told} after {len(results)} checks", file=sys.stderr)
        return Exit.FAILED
    if not arguments.json:
        bad = sum(bool(result["problems"]) for result in results)
        print(f"{len(results)} checks, {bad} failed" if bad else f"{len(results)} checks hold")
    return Exit(process.returncode)


def _harness(arguments: argparse.Namespace) -> Topology:
    try:
        words = shlex.split(arguments.command)
    except ValueError as error:
        what = f"{arguments.command!r} is no command line: {error}"
        raise ConfigError([Problem(what, "--command", "close its quotes")]) from error
    options = {"command": words, **read_options(arguments.option)}
    return Topology(
        run=RunConfig(name="agent-check", steps=1),
        data=DataConfig(prompts=arguments.prompts, reward=arguments.reward),
        actors=ActorsConfig(
            agent=AgentConfig(agent=COMMAND_AGENT, options=options),
            session=SessionConfig(http=HttpConfig()),
        ),
    )


def _topology(arguments: argparse.Namespace) -> Topology:
    options = read_options(arguments.option)
    target: str = arguments.target
    is_program = PLACE in target
    if is_program or (":" in target and not target.endswith(".toml")):
        if is_program and options:
            what = "a program takes its options in its command"
            raise ConfigError([Problem(what, "--option", "write them there")])
        agent = None if is_program else AgentConfig(agent=target, options=options)
        return Topology(
            run=RunConfig(name="agent-check", steps=1),
            data=DataConfig(prompts=arguments.prompts, reward=arguments.reward),
            actors=ActorsConfig(agent=agent),
        )
    unused = [name for name in ("prompts", "reward") if vars(arguments)[name]]
    if options or unused:
        what = "the topology says this already"
        words = ", ".join(f"--{name}" for name in (*unused, *(["option"] if options else [])))
        raise ConfigError([Problem(what, words, "leave it out, or name the class")])
    topology = load_topology(target)
    if topology.actors.agent is None:
        raise ConfigError([Problem("there is no agent in it", "$.actors.agent", "add it")])
    return topology


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield f" {'FAIL' if result['problems'] else 'ok  '}  {result['sentence']}"
    for problem in result["problems"]:
        yield f"       {problem}"
