"""What the live display costs: processor time for each second of a run that it shows.

    pytest tests/bench/bench_display.py -s

Two cores are shared with the run itself, so a display may take a small part of one. Beside it
stands what one picture costs when rich alone draws as many characters, without anything of ours.
"""

from __future__ import annotations

import io
import time

from rich.console import Console
from rich.text import Text
from unit.display.test_screen import Clock, a_run

from milepost.launch.display.progress import Progress
from milepost.launch.display.screen import Screen, picture

STEPS = 200
PART_MAX = 0.02


def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def test_the_screen() -> None:
    """Below 2 % of a core; a step a second, shown as often as a second allows."""
    clock = Clock()
    progress = Progress("lookup", 80, "solved")
    screen = Screen(progress, console(), clock)
    screen.open()
    begun_s = time.process_time()
    a_run(screen, clock, steps=STEPS)
    spent_s = time.process_time() - begun_s
    screen.close()
    bare = console()
    with bare.capture() as captured:
        bare.print(picture(progress))
    text = Text(captured.get())
    begun_s = time.process_time()
    for _ in range(STEPS):
        bare.print(text)
    floor_s = time.process_time() - begun_s
    print(
        f"\nscreen {100 * spent_s / STEPS:.2f} % of a core (<= {100 * PART_MAX:.0f} %) | "
        f"rich alone {100 * floor_s / STEPS:.2f} % | x{spent_s / floor_s:.1f}"
    )
