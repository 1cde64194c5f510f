"""Shows the life of one trajectory, or of a group, through all actors, causes before effects.

    milepost trace RUN g0000021.4

Of a run that goes on, the actors are asked; of one that has ended, however it did, the recordings
in RUN/recorder are read, those of a resumed run start after start. Times are those of each host's
clock; the order does not rest on them. A recorder is bounded: a line says whose recording does not
reach back to its beginning. Read-only.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import (
    Client,
    NotServed,
    Unreachable,
    add_run_arguments,
    attached,
    find_run,
    print_json,
    take_run,
)
from milepost.launch.exits import Exit
from milepost.launch.visible import visible_line

if TYPE_CHECKING:
    from milepost.actors.recorder.reading import Recording
    from milepost.actors.recorder.tracing import Moment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[RUN] TRAJECTORY, --run and --json."""
    parser.add_argument(
        "words", nargs="+", metavar="TRAJECTORY", help="its id, after the run's folder if you like"
    )
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Gather the lines, put them in order, print them; code 1 when there are none."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.actors.recorder.tracing import behind_s, moments

    words = take_run(arguments, arguments.words)
    if len(words) != 1:
        raise ConfigError([Problem(f"{len(words)} names", "TRAJECTORY", "name one of them")])
    recordings, notes = _gather(arguments.run, words[0])
    found = moments(recordings, words[0])
    for (host, other), seconds in behind_s(found).items():
        notes.append(f"the clock of {host} is at least {seconds:.3f} s behind that of {other}")
    if arguments.json:
        print_json({"trajectory": words[0], "moments": list(map(_facts, found)), "notes": notes})
    else:
        for line in _lines(found):
            print(line)
        for note in notes:
            print(f"# {note}", file=sys.stderr)
    if not found:
        print(f"error: nothing is recorded of {words[0]}", file=sys.stderr)
    return Exit.DONE if found else Exit.FAILED


def _gather(folder: Path | None, name: str) -> tuple[list[Recording], list[str]]:
    """From the actors of a run that goes on, else from its folder."""
    try:
        return asyncio.run(_ask(folder, name))
    except Unreachable:
        if folder is None or not (folder / "recorder").is_dir():
            raise
    return _read(folder)


def _read(folder: Path) -> tuple[list[Recording], list[str]]:
    from milepost.actors.recorder.reading import read_recordings, tell_apart

    unreadable: dict[Path, str] = {}
    recordings = read_recordings(folder / "recorder", unreadable=unreadable)
    tell_apart(recordings)
    short = [each.name for each in recordings if each.lines and each.lines[0].number > 0]
    damaged = [f"{text}, lines are missing" for each in recordings for text in each.damaged]
    left_out = [f"{text}; what it holds is missing" for text in unreadable.values()]
    return recordings, [*map(_too_short, short), *damaged, *left_out]


async def _ask(folder: Path | None, name: str) -> tuple[list[Recording], list[str]]:
    from milepost.actors.recorder.reading import Recording, read_lines
    from milepost.messages.supervisor import (
        RecorderLines,
        RecorderRead,
        Snapshot,
        SnapshotRequested,
    )

    recordings, notes = [], []
    async with Client(find_run(folder)) as client:
        snapshot = await client.ask(SnapshotRequested(), Snapshot)
        for actor in (each["actor"] for each in snapshot.actors):
            try:
                told = await client.ask(RecorderRead(actor=actor, about=name), RecorderLines)
            except NotServed as error:
                notes.append(f"{actor} does not tell: {error}")
                continue
            recordings.append(Recording(told.about, read_lines(told.about, told.lines)))
            if told.left_out:
                notes.append(f"{told.left_out} older lines of {actor} are left out")
            if not told.reaches_back:
                notes.append(_too_short(actor))
    return recordings, notes


def _too_short(actor: str) -> str:
    return f"the recording of {actor} does not reach back to its beginning"


def _lines(found: list[Moment]) -> list[str]:
    from milepost.actors.recorder.lines import clock, decision_words, event_words

    lines = []
    width = max((len(each.recording.name) for each in found), default=0)
    for each in found:
        head = f"{clock(each.line.wall_s)}  {each.recording.name:<{width}}  "
        lines.append(f"{head}{visible_line(event_words(each.line))}")
        lines += [
            f"{'':{len(head)}}-> {visible_line(decision_words(decision))}"
            for decision in each.line.decisions
            if decision.kind != "wake"
        ]
    return lines


def _facts(moment: Moment) -> dict[str, Any]:
    import msgspec

    line = moment.line
    facts = {name: getattr(line, name) for name in line.__struct_fields__ if name != "decisions"}
    decisions = [
        {name: getattr(each, name) for name in each.__struct_fields__} for each in line.decisions
    ]
    plain = msgspec.to_builtins(decisions)
    return {"actor": moment.recording.name, "host": moment.host, **facts, "decisions": plain}
