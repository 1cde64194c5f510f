"""Shows runs as pages in a browser: curves, steps, groups, and every trajectory by its tokens.

FOLDER is a run's, or one with runs in it (default: runs/). The pages are served on this machine
only, behind a token in the printed address; nothing is fetched from elsewhere and nothing of a run
is changed. From another machine: ssh -L PORT:127.0.0.1:PORT HOST, with --port PORT here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import webbrowser
from contextlib import AsyncExitStack
from html import escape
from pathlib import Path

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import RUNS
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path

PORT_MAX = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "folder",
        type=possible_path,
        nargs="?",
        default=RUNS,
        metavar="FOLDER",
        help=f"of a run, or of many (default: {RUNS}/)",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="listen there (default: any free port)"
    )
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")
    parser.add_argument("--json", action="store_true", help="print the address as a JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: no such folder or port.
    """
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise ConfigError([Problem(f"{folder} is no folder", "FOLDER", "name a run, or runs/")])
    if not 0 <= arguments.port <= PORT_MAX:
        raise ConfigError([Problem(f"{arguments.port} is no port", "--port", "0 takes a free one")])
    return asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> int:
    # aiohttp and jinja2 take a quarter of a second to import, and a wrong word needs neither.
    from milepost.launch.view.runs import Runs
    from milepost.launch.view.server import ViewServer

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(
                ViewServer(Runs(arguments.folder), arguments.port)
            )
        except OSError as error:
            print(f"error: port {arguments.port}: {error.strerror}", file=sys.stderr)
            return Exit.REFUSED
        if arguments.json:
            print(json.dumps({"address": server.address}), flush=True)
        else:
            print(f"{server.address}\nCtrl-C ends it", flush=True)
        if arguments.open:
            private = stack.enter_context(tempfile.TemporaryDirectory(prefix="milepost-view-"))
            await asyncio.to_thread(_open, server.address, Path(private))
        await ended.wait()
    return Exit.DONE


def _open(address: str, private: Path) -> None:
    """Open the address by way of a file of our own.

    The command line of a browser can be read by everybody on this machine, and with it the token.
    """
    page = private / "open.html"
    descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<meta http-equiv="refresh" content="0;url={escape(address)}">')
    if not webbrowser.open(page.as_uri()):
        print("no browser could be opened here, use the address", file=sys.stderr)
