"""Join a running job with an agent of your own.

The job's topology has [actors.guests]. WHERE is its run folder, an invitation file copied from
there (RUN/.milepost/guests.json), or an address together with --invitation:

    milepost agent my_module:MyAgent --connect runs/lookup-3
    milepost agent my_module:MyAgent --connect tcp://10.0.0.5:7001 --invitation guests.json

Ctrl-C takes nothing new, finishes what runs, and leaves; a second one leaves at once. What was not
finished is issued again by the job: nothing is lost, nothing is counted twice. When the job ends,
so does this command: with 0 if its work was done, with 1 if it failed or was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from typing import Any

from milepost.launch.exits import Exit
from milepost.launch.options import possible_path, read_options

RUN_DONE = "done"
"""Status of a run whose work was done, as its summary has it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("agent", metavar="MODULE:CLASS", help="a subclass of milepost.Agent")
    parser.add_argument(
        "--connect", required=True, metavar="WHERE", help="run folder, invitation, or address"
    )
    parser.add_argument(
        "--invitation", type=possible_path, default=None, metavar="FILE", help="keys for an address"
    )
    parser.add_argument(
        "--episodes", type=int, default=16, metavar="N", help="episodes run at once (default: 16)"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="argument of the class"
    )
    parser.add_argument("--name", default=socket.gethostname(), help="shown by the job")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON at the end")


def run(arguments: argparse.Namespace) -> int:
    """Join, run episodes, leave."""
    from milepost.actors.agent.run import AgentError, make_agent
    from milepost.actors.guests.address import InvitationError
    from milepost.actors.guests.invitation import read_invitation

    if arguments.episodes < 1:
        print(f"error: --episodes {arguments.episodes}, set 1 or more", file=sys.stderr)
        return Exit.REFUSED
    try:
        invitation = read_invitation(arguments.connect, arguments.invitation)
        agent = make_agent(arguments.agent, read_options(arguments.option), {})
    except (InvitationError, AgentError, ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.REFUSED
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return asyncio.run(_visit(agent, invitation, arguments))


async def _visit(agent: Any, invitation: Any, arguments: argparse.Namespace) -> int:
    from milepost.actors.guests.visitor import DoorClosed, Visitor

    visitor = Visitor(agent, invitation, name=arguments.name, episodes_max=arguments.episodes)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, visitor.leave, f"stopped by {number.name}")
    code = Exit.DONE
    try:
        await visitor.run()
    except DoorClosed as error:
        print(f"error: {error}", file=sys.stderr)
        code = Exit.UNREACHABLE
    if visitor.goodbye is not None and visitor.goodbye.status != RUN_DONE:
        how = visitor.goodbye.status or "it does not say how"
        print(f"error: the run ended ({how}): {visitor.goodbye.reason}", file=sys.stderr)
        code = Exit.FAILED
    counts = dict(sorted(visitor.counts.items()))
    if arguments.json:
        print(json.dumps(counts))
    else:
        told = ", ".join(f"{count} {what}" for what, count in counts.items()) or "none"
        print(f"episodes: {told}")
    return code
