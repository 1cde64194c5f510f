"""Answers Prometheus for a running job: metrics, and figures of each actor.

    milepost prometheus --listen 127.0.0.1:9464

Attaches to a run that was started without it, and ends with it. Read-only; a topology with
[tracking.prometheus] has the same beside the run from its start. An address that others reach
needs --key-file, whose text scrapes carry as `Authorization: Bearer KEY`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
from ipaddress import ip_address
from typing import Final

from milepost.launch.attach import Run, Unreachable, add_run_arguments, attached, find_run
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path

LISTEN: Final = "127.0.0.1:9464"
ALIVE_S: Final = 2.0
PORT_MAX: Final = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--listen, --key-file, --run and --json."""
    parser.add_argument(
        "--listen", default=LISTEN, metavar="HOST:PORT", help=f"where to answer ({LISTEN})"
    )
    parser.add_argument(
        "--key-file", type=possible_path, default=None, help="file with the key of scrapes"
    )
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until the run ends or Ctrl-C."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    host, _, port = arguments.listen.rpartition(":")
    try:
        is_private = ip_address(host.strip("[]")).is_loopback
        key = arguments.key_file.read_text("utf-8").strip() if arguments.key_file else ""
        if arguments.key_file and not key:
            return _refused(f"{arguments.key_file} is empty, write the key into it")
        if not is_private and not key:
            return _refused(f"everybody who reaches {host} may read the metrics, add --key-file")
        if not 0 <= int(port) <= PORT_MAX:
            return _refused(f"{port} is no port, --listen takes HOST:PORT")
        found = find_run(arguments.run)
        if not found.statistics:
            return _refused(f"{found.folder} is of a run elsewhere: serve its metrics over there")
        bound = _bind(host.strip("[]"), int(port))
    except (OSError, ValueError) as error:
        return _refused(f"cannot listen on {arguments.listen}: {error}")
    with bound, contextlib.suppress(KeyboardInterrupt):
        address, number = bound.getsockname()[:2]
        where = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
        url = f"http://{where}/metrics"
        if arguments.json:
            print(json.dumps({"address": url, "run": str(found.folder)}), flush=True)
        else:
            print(f"{url} answers for {found.folder}", flush=True)
        asyncio.run(_serve(found, bound, key))
    return Exit.DONE


def _refused(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return Exit.REFUSED


def _bind(host: str, port: int) -> socket.socket:
    from milepost.supervisor.sockets import bound

    return bound(host, port)


async def _serve(found: Run, bound: socket.socket, key: str) -> None:
    from milepost.supervisor.exporter.server import export

    until = asyncio.Event()
    exporting = export(found.statistics, found.run_id, bound, key, until)
    serving = asyncio.create_task(exporting, name="export")
    while not serving.done():
        await asyncio.wait({serving}, timeout=ALIVE_S)
        try:
            find_run(found.folder)
        except Unreachable as error:
            print(f"# {error}", file=sys.stderr)
            until.set()
            break
    await serving
