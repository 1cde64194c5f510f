"""Follows the log of an actor, or the events or metrics of the run.

Prints the last lines and then whatever is added, until the run ends. With --json each line is an
object {log, line}, except that those of `events` and `metrics` are printed as they are. Read-only.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

import msgspec

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import Client, Unreachable, add_run_arguments, attached, find_run
from milepost.launch.exits import Exit
from milepost.launch.visible import visible_line
from milepost.supervisor.logs import log_path, read_piece

POLL_S: Final = 0.3
LAST_BYTES_MAX: Final = 1 << 22
JSON_LOGS: Final = frozenset({"events", "metrics"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[LOG], --lines, --no-follow, --run and --json."""
    parser.add_argument(
        "log", nargs="?", default="events", metavar="LOG", help="an actor, `events` or `metrics`"
    )
    parser.add_argument("--lines", type=int, default=20, help="lines of the past to begin with")
    parser.add_argument("--no-follow", action="store_true", help="print these and return")
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read pieces of the log as they grow."""
    if arguments.lines < 0:
        what = f"--lines = {arguments.lines}"
        raise ConfigError([Problem(what, "command line", "set 0 or more")])
    try:
        return attached(lambda: asyncio.run(_run(arguments)))
    except KeyboardInterrupt:
        return Exit.DONE  # which is how following ends


async def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import LogRead, LogRequested

    found = find_run(arguments.run)
    async with Client(found) as client:
        piece = await client.ask(LogRequested(log=arguments.log), LogRead)
        lines, rest = whole_lines(b"", piece.data)
        if piece.offset > len(piece.data):
            del lines[:1]  # it begins before what was read
        _print(lines[-arguments.lines :] if arguments.lines else [], arguments)
        while not arguments.no_follow:
            await asyncio.sleep(POLL_S)
            try:
                wanted = LogRequested(log=arguments.log, offset=piece.offset)
                piece = await client.ask(wanted, LogRead)
            except Unreachable:
                # What was written between our last question and the end is what matters most.
                lines, rest = whole_lines(rest, unread(found.folder, arguments.log, piece.offset))
                _print(lines, arguments)
                break
            lines, rest = whole_lines(rest, piece.data)
            _print(lines, arguments)
        if rest:
            _print([rest.decode(errors="replace")], arguments)
    return Exit.DONE


def unread(run: Path, log: str, offset: int) -> bytes:
    """What a run that has ended wrote behind this byte; nothing where only its ticket lies."""
    path = run / f"{log}.jsonl" if log in JSON_LOGS else log_path(run, log)
    try:
        return read_piece(path, offset, LAST_BYTES_MAX)[0]
    except OSError:
        return b""


def whole_lines(rest: bytes, data: bytes) -> tuple[list[str], bytes]:
    """Lines that are complete, and the beginning of the next one."""
    *lines, rest = (rest + data).split(b"\n")
    return [line.decode(errors="replace") for line in lines], rest


def _print(lines: list[str], arguments: argparse.Namespace) -> None:
    for line in lines:
        if arguments.json and arguments.log not in JSON_LOGS:
            print(msgspec.json.encode({"log": arguments.log, "line": line}).decode(), flush=True)
        else:
            # A file is given as it is; a terminal would obey what a model wrote into a log.
            print(visible_line(line) if sys.stdout.isatty() else line, flush=True)
