"""Accounts for every prompt group and every sampled token of a run.

    groups    issued = trained + dropped (by reason) + being sampled + in the buffer
    tokens    sampled = trained + evaluated + wasted (by account) + held + under way

Of a run that goes on, or of the folder of one that has ended. Exit code 1 when the groups do not
balance. Read-only.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from milepost.launch.accounts import Account, account_of, lines_of
from milepost.launch.attach import (
    NotServed,
    add_run_arguments,
    ask_once,
    attached,
    find_run,
    print_json,
)
from milepost.launch.exits import Exit


class _Summary(msgspec.Struct, frozen=True):
    statistics: dict[str, dict[str, Any]] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--run and --json."""
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask for a snapshot, or read the summary of a run that has ended."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    ended = arguments.run is not None and (arguments.run / "summary.json").is_file()
    statistics = read_statistics(arguments.run) if ended else _ask(arguments.run)
    account = account_of(statistics)
    if account is None and ended and not statistics:
        raise NotServed(
            f"the run in {arguments.run} was killed, and with it the last word of its actors: "
            f"`milepost run --resume {arguments.run}` goes on with the books of its journal"
        )
    if account is None:
        raise NotServed("this run has no rollout actor, or it has said nothing yet")
    if arguments.json:
        print_json({**_facts(account), "balance": account.balance})
    else:
        print("\n".join(lines_of(account, None if ended else time.monotonic())))
    return Exit.FAILED if account.balance else Exit.DONE


def _facts(account: Account) -> dict[str, Any]:
    return {name: getattr(account, name) for name in account.__struct_fields__}


def _ask(folder: Path | None) -> dict[str, dict[str, Any]]:
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    snapshot = ask_once(find_run(folder), SnapshotRequested(), Snapshot)
    return {actor["actor"]: actor["statistics"] for actor in snapshot.actors}


def read_statistics(folder: Path) -> dict[str, dict[str, Any]]:
    """What the actors of a run that has ended said last."""
    path = folder / "summary.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Summary).statistics
    except msgspec.DecodeError as error:
        raise NotServed(f"{path} is damaged, and no actor is left to ask: {error}") from error
