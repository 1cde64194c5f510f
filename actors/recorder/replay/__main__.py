"""`python -m milepost.actors.recorder.replay RUN ACTOR`: a replay in a process of its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from milepost.actors.commands import end_at_ctrl_c, say
from milepost.actors.recorder.replay.cores import make_core
from milepost.actors.recorder.replay.playing import Played, play
from milepost.actors.recorder.replay.tape import ReplayRefused, Tape, Until

SAME: Final = 0
DIFFERENT: Final = 10
REFUSED: Final = 11
"""Neither is what Python ends with by itself."""


def main() -> int:
    """Replay and report; the exit code is one of the three above."""
    parser = argparse.ArgumentParser(prog="python -m milepost.actors.recorder.replay")
    parser.add_argument("run", type=Path)
    parser.add_argument("actor")
    parser.add_argument("--until", default="")
    parser.add_argument("--bound", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        facts, lines, same = _replay(arguments)
    except ReplayRefused as error:
        facts, lines, same = {"refused": str(error)}, [f"refused: {error}"], None
    say([json.dumps(facts)] if arguments.json else lines)
    return REFUSED if same is None else SAME if same else DIFFERENT


def _replay(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    until = Until.of(arguments.until)
    if not 0.0 <= arguments.bound < 1.0:
        what = f"--bound {arguments.bound:g} is no relative difference: set 0 or more, below 1"
        raise ReplayRefused(what)
    tape = Tape.read(arguments.run, arguments.actor, until)
    if tape.spec.kind != "trainer":
        played = play(tape, make_core(tape.spec))
        return _facts(tape, played), _lines(tape, played), played.difference is None
    from milepost.actors.recorder.replay.training import replay_training

    trained = replay_training(tape, until)
    facts, lines = _facts(tape, trained.played), _lines(tape, trained.played)
    facts["begun"] = trained.begun
    facts["steps"] = [
        {"step": each.step, "recorded": each.then, "replayed": each.now} for each in trained.steps
    ]
    same = trained.played.difference is None
    lines.append(f"trained {len(trained.steps)} steps again from {trained.begun}")
    for each in trained.steps:
        different = each.differences(arguments.bound)
        same = same and not different
        verdict = f"differs in {', '.join(different)}" if different else "the same"
        lines.append(f"{each.words()}: {verdict}")
    return facts, lines, same


def _facts(tape: Tape, played: Played) -> dict[str, Any]:
    return {
        "incarnation": tape.spec.incarnation,
        "unread": tape.unread,
        "lines": played.num_lines,
        "decisions": played.num_decisions,
        "difference": list(played.difference.words()) if played.difference else [],
    }


def _lines(tape: Tape, played: Played) -> list[str]:
    lines = [f"not read: {what}" for what in tape.unread]
    who = f"{tape.spec.actor}, incarnation {tape.spec.incarnation}"
    told = f"{who}: {played.num_lines} events, {played.num_decisions} decisions"
    if played.difference is None:
        return [*lines, f"{told}, every one the same"]
    return [*lines, f"{told} the same; then", *played.difference.words()]


if __name__ == "__main__":
    end_at_ctrl_c()
    sys.exit(main())
