"""Reward functions as users write them, good and bad. Imported by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from milepost.actors.agent import RewardInput, RewardResult


def exact(given: RewardInput) -> RewardResult:
    """1 for the label, and whether it was."""
    solved = float(given.text == given.label)
    return RewardResult(reward=solved, metrics={"solved": solved})


def by_label(given: RewardInput) -> Any:
    """Does what the label says."""
    match given.label:
        case "loop":
            while True:
                pass
        case "fork":
            if os.fork() == 0:
                signal.pause()
            os._exit(3)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(3)
        case "raise":
            raise ValueError("cannot parse")
        case "print":
            print("to people" * 1000)  # noqa: T201
            sys.stdout.flush()
        case "alarm":
            return _with_alarm()
        case "wait":
            threading.Event().wait(0.3)
        case "nan":
            return float("nan")
        case "text":
            return "1"
    return 1.0, {"pid": os.getpid()}


def _with_alarm() -> float:
    """A time limit by signal, which works in a main thread only."""

    def rings(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, rings)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        threading.Event().wait(5.0)
    except TimeoutError:
        return 0.5
    return 0.0


def length(given: RewardInput) -> float:
    """Any number: that of characters."""
    return float(len(given.text))
