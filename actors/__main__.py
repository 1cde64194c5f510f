"""Entry of every child process: `python -P -m milepost.actors --spec FILE`."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import uvloop

from milepost.actors import collector, cores
from milepost.actors.context import ActorContext
from milepost.actors.lifeline import tie_to_parent
from milepost.actors.recorder.recorder import Recorder
from milepost.actors.shell import ActorFailed
from milepost.configs.spec import ActorSpec
from milepost.messages.bus import Bus, BusLimits
from milepost.messages.schema import fingerprint
from milepost.messages.supervisor import Hello, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ENTRIES: Final[dict[str, str]] = {
    "rollout": "milepost.actors.rollout.run",
    "agent": "milepost.actors.agent.run",
    "guests": "milepost.actors.guests.run",
    "session": "milepost.actors.session.run",
    "engine": "milepost.actors.engine.run",
    "evaluation_engine": "milepost.actors.engine.run",
    "buffer": "milepost.actors.buffer.run",
    "trainer": "milepost.actors.trainer.run",
    "publisher": "milepost.actors.publisher.run",
    "evaluator": "milepost.actors.evaluator.run",
}
"""Kind of actor -> module with `async def run(context)`; other kinds are the user's own."""
CUSTOM_ENTRY: Final = "milepost.actors.custom"
CLOSE_S: Final = 2.0
EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1


def main() -> NoReturn:
    """Run one actor until it is stopped; the exit code is 0 only then."""
    tie_to_parent()
    collector.starts()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser(prog="python -m milepost.actors")
    parser.add_argument("--spec", type=Path, required=True)
    spec = msgspec.json.decode(parser.parse_args().spec.read_bytes(), type=ActorSpec)
    if refused := cores.share(spec.topology.system.cores):
        sys.stderr.write(f"{refused}\n")
    code = EXIT_STOPPED
    try:
        uvloop.run(_live(spec))
    except ActorFailed as error:
        # A reason that it gave itself; the place in our code where that is raised tells nothing.
        sys.stderr.write(f"{_story(error)}{error}\n")
        code = EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the top of this process: the log gets the reason
        traceback.print_exc()
        if _story(error):
            # The last line of a log is what the supervisor takes for the reason.
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        code = EXIT_FAILED
    # Everything is closed. Tearing an interpreter with torch in it down takes seconds, for nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _live(spec: ActorSpec) -> None:
    recorder = Recorder.open(spec)
    if recorder is not None:
        recorder.watch()
    bus = await Bus.open(
        name=spec.actor,
        incarnation=spec.incarnation,
        run_id=spec.run_id,
        addresses=spec.addresses,
        limits=BusLimits(**msgspec.structs.asdict(spec.topology.system.bus)),
        secret_key=spec.secret_key,
        listen_fd=spec.listen_fd,
    )
    context = ActorContext(spec, bus, recorder)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, context.stopping.set)
    # Ctrl-C in a terminal reaches the whole foreground group; only the supervisor decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await _greet(spec, bus)
        run: Callable[[ActorContext], Awaitable[None]] = import_module(
            ENTRIES.get(spec.kind, CUSTOM_ENTRY)
        ).run
        await run(context)
    finally:
        await bus.close(deadline_s=CLOSE_S)
        if recorder is not None:
            recorder.close()


def _story(error: BaseException) -> str:
    """What the recorder noted with it; empty when there is nothing."""
    return "".join(getattr(error, "__notes__", ()))


async def _greet(spec: ActorSpec, bus: Bus) -> None:
    hello = Hello(
        actor=spec.actor, incarnation=spec.incarnation, pid=os.getpid(), schema=fingerprint()
    )
    deadline_s = spec.topology.system.timeouts.hello_s
    answer = (await bus.ask("supervisor", hello, deadline_s=deadline_s)).message
    if isinstance(answer, Refused):
        raise RuntimeError(f"supervisor refused {spec.actor}: {answer.reason}")


if __name__ == "__main__":
    main()
