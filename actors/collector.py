"""When Python's collector of cycles runs in an actor.

Almost everything here is freed by counting references. What the collector costs is walking what
lives: a process that is importing torch makes a million objects that stay, and one that serves has
some thousands in flight, which at the interpreter's own threshold of 700 are walked several times
for each message. Measured in the quick start at 700: 2.5 % of the processor time of an agent, 1.6 %
of a session; at 5,000 a tenth of that in a session.
"""

from __future__ import annotations

import gc
from typing import Final

STARTING: Final = (100_000, 10, 10)
"""Objects made and not freed before the collector looks at them, while imports go on."""
SERVING: Final = (10_000, 5, 20)
"""The same afterwards, and how often it looks at what is not so new: at most 50,000 objects, 2 ms.
Cycles that hold memory, such as a failed call's frames, go in time."""


def starts() -> None:
    """This process begins: next to nothing of what is made now will ever be freed."""
    gc.set_threshold(*STARTING)


def settles() -> None:
    """What start-up made stays for good, and is never walked again: 10 to 180 ms each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVING)
