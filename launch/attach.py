"""Finding a run that goes on, and asking its supervisor: the client half of attached commands."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.messages.shared import Message
from milepost.supervisor.cleanup.registry import PRIVATE, read_registry
from milepost.supervisor.cleanup.unfinished import RUN_FILE, SUMMARY
from milepost.supervisor.ticket import TICKET, Ticket

RUNS: Final = Path("runs")
"""Where runs are looked for when none is named."""
ASK_S: Final = 5.0
ATTACH: Final = "attach"
Answer = TypeVar("Answer", bound=Message)


class Unreachable(RuntimeError):
    """No supervisor of that run answers (exit 3)."""


class Damaged(Unreachable):
    """What says how to reach it cannot be read."""


class NotServed(RuntimeError):
    """The supervisor answers, but will not serve this request (exit 1)."""


class Ambiguous(RuntimeError):
    """More than one run goes on and none was named (exit 2)."""


class Run(msgspec.Struct, frozen=True):
    """A run and how to reach it.

    Attributes:
        folder: its run folder.
        run_id: part of every message; a supervisor of another run refuses it.
        endpoint: where clients are answered.
        statistics: where a snapshot is published every second; empty on another machine.
        pid: of the supervisor; 0 on another machine.
        public_key: CURVE (Z85), of the door on tcp.
        secret_key: CURVE (Z85), the clients' own.
    """

    folder: Path
    run_id: str
    endpoint: str
    statistics: str
    pid: int
    public_key: str = ""
    secret_key: str = ""


class _Address(msgspec.Struct, frozen=True):
    endpoint: str
    public_key: str = ""


class _RunFile(msgspec.Struct, frozen=True):
    """What a client needs of `.milepost/run.json`."""

    run_id: str
    endpoint: str
    statistics: str
    pid: int
    ended: bool


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """[RUN] and --json, as every attached command has them."""
    parser.add_argument(
        "--run",
        type=possible_path,
        default=None,
        metavar="RUN",
        help=f"the run's folder, or on another machine a copy of its .milepost/{TICKET}; may be "
        f"left out while exactly one run goes on under {RUNS}/",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def take_run(arguments: argparse.Namespace, words: list[str]) -> list[str]:
    """The words without the run among them: a path in front is what `--run` names."""
    if words and arguments.run is None and ("/" in words[0] or _is_folder(Path(words[0]))):
        arguments.run = Path(words[0])
        return words[1:]
    return words


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # longer than a name of a file may be
        return False


def add_actor_words(parser: argparse.ArgumentParser) -> None:
    """[RUN] [ACTOR ...], which `take_run` takes apart."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ACTOR",
        help="process names; the run's folder may come first",
    )


def find_run(named: Path | None) -> Run:
    """The run that is meant.

    Raises:
        Unreachable: the folder holds no run, or its supervisor is gone.
        Ambiguous: several go on and none was named.
    """
    if named is not None:
        return _read_ticket(named) if _is_file(named) else _read_run(named)
    going_on, damaged = [], []
    for folder in sorted(RUNS.glob("*")):
        try:
            going_on.append(_read_run(folder))
        except Damaged as error:
            damaged.append(f"; {error}")
        except Unreachable:
            pass  # it has ended, or is no run
    if not going_on:
        what = f"no run goes on under {RUNS.resolve()}, name its folder with --run"
        raise Unreachable(what + "".join(damaged))
    if len(going_on) > 1:
        names = ", ".join(str(run.folder) for run in going_on)
        raise Ambiguous(f"{len(going_on)} runs go on, name one with --run: {names}")
    return going_on[0]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise Unreachable(f"{str(path)[:80]} cannot be looked at: {error.strerror}") from error


def _read_run(folder: Path) -> Run:
    path = folder / RUN_FILE
    try:
        facts = msgspec.json.decode(path.read_bytes(), type=_RunFile)
        if facts.ended:
            raise Unreachable(f"the run in {folder} has ended, {folder}/{SUMMARY} says how")
        is_in_use = read_registry(folder).in_use
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreachable(f"{folder} holds no run: {error.filename} is missing") from error
    except (OSError, ValueError) as error:
        raise Damaged(
            f"nobody can attach to the run in {folder}, {PRIVATE}/ cannot be read ({error}):"
            f" `milepost monitor`, `view` and `audit` read the rest of the folder,"
            f" `milepost reap {folder}` ends what is left of a killed run"
        ) from error
    if not is_in_use:
        raise Unreachable(
            f"the supervisor of {folder} (pid {facts.pid}) is gone,"
            f" `milepost reap {folder}` cleans up after it"
        )
    return Run(folder, facts.run_id, facts.endpoint, facts.statistics, facts.pid)


def _read_ticket(path: Path) -> Run:
    try:
        ticket = msgspec.json.decode(path.read_bytes(), type=Ticket)
    except (OSError, msgspec.DecodeError) as error:
        raise Unreachable(f"{path} is no copy of a run's .milepost/{TICKET}: {error}") from error
    keys = ticket.server_public_key, ticket.secret_key
    return Run(path, ticket.run_id, ticket.endpoint, "", 0, *keys)


class Client:
    """One connection to a supervisor; `async with Client(run) as client`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def __aenter__(self) -> Self:
        """Connect; nothing is waited for yet."""
        from milepost.messages.bus import Bus

        self._bus = await Bus.open(
            name=f"client-{os.urandom(4).hex()}",
            incarnation=0,
            run_id=self._run.run_id,
            addresses={ATTACH: _Address(self._run.endpoint, self._run.public_key)},
            secret_key=self._run.secret_key,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._bus.close(deadline_s=0.2)

    async def ask(self, message: Message, expected: type[Answer], ask_s: float = ASK_S) -> Answer:
        """Ask the supervisor.

        Raises:
            Unreachable: no answer within `ask_s` seconds.
            NotServed: the supervisor refuses, with its reason.
        """
        from milepost.messages.bus import Unanswered
        from milepost.messages.supervisor import Refused

        try:
            answer = (await self._bus.ask(ATTACH, message, deadline_s=ask_s)).message
        except Unanswered as error:
            where = f"pid {self._run.pid}" if self._run.pid else f"at {self._run.endpoint}"
            raise Unreachable(f"the supervisor ({where}): {error.reason}") from error
        if isinstance(answer, Refused):
            raise NotServed(answer.reason)
        assert isinstance(answer, expected), f"{type(answer).__name__} is no {expected.__name__}"
        return answer


def ask_once(run: Run, message: Message, expected: type[Answer], ask_s: float = ASK_S) -> Answer:
    """Connect, ask one question, disconnect; raises as `Client.ask`."""

    async def talk() -> Answer:
        async with Client(run) as client:
            return await client.ask(message, expected, ask_s)

    return asyncio.run(talk())


def attached(work: Callable[[], int]) -> int:
    """Run the body of an attached command; its errors become a line and an exit code."""
    try:
        return work()
    except Unreachable as error:
        code = Exit.UNREACHABLE
        print(f"error: {error}", file=sys.stderr)
    except Ambiguous as error:
        code = Exit.REFUSED
        print(f"error: {error}", file=sys.stderr)
    except NotServed as error:
        code = Exit.FAILED
        print(f"error: {error}", file=sys.stderr)
    return code


def print_json(value: object) -> None:
    """One JSON document, indented."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
