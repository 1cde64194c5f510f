"""A display on a thread of its own: whoever reads it may stand still, the run does not.

Ctrl-S in a terminal, a pager that waits for a key, a frozen ssh: a write to any of them returns
when its reader goes on. On the supervisor's event loop it would stop the heartbeats of every actor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from milepost.messages.supervisor import EventReported, Snapshot
from milepost.supervisor.display import Display

KEPT_MAX: Final = 1024
"""Steps and events that wait for the reader; older ones are left out, and counted."""
CLOSE_S: Final = 2.0
"""Longest wait at the end for a reader who stands still."""

Told: TypeAlias = Callable[[Display], None]


class ThreadedDisplay:
    """Tells `inner` everything in order, on its thread; of snapshots only the newest that waits.

    What `inner` raises is raised at the next thing that is told, and it is told nothing more.

    Args:
        inner: may block for as long as it likes.
        at_end: called on its thread after the last thing was shown; may block, too.
        kept_max: most steps and events that wait.
    """

    def __init__(
        self, inner: Display, at_end: Callable[[], None], kept_max: int = KEPT_MAX
    ) -> None:
        self._inner = inner
        self._at_end = at_end
        self._kept_max = kept_max
        self._told: deque[Told] = deque()
        self._snapshot: Snapshot | None = None
        self._num_left_out = 0
        self._error: Exception | None = None
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._show, name="display", daemon=True)
        self._thread.start()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """The state of the whole run, once a second."""
        with self._changed:
            self._raise_what_happened()
            self._snapshot = snapshot
            self._changed.notify()

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of one step, from one actor."""
        self._tell(lambda inner: inner.on_step(step, metrics))

    def on_event(self, event: EventReported) -> None:
        """One line of events.jsonl."""
        self._tell(lambda inner: inner.on_event(event))

    def close(self) -> None:
        """Wait until all is shown, `CLOSE_S` at most; the thread goes on with what is left."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _tell(self, told: Told) -> None:
        with self._changed:
            self._raise_what_happened()
            if len(self._told) == self._kept_max:
                self._told.popleft()
                self._num_left_out += 1
            self._told.append(told)
            self._changed.notify()

    def _raise_what_happened(self) -> None:
        if self._error is not None:
            raise self._error

    def _show(self) -> None:
        try:
            while (batch := self._next()) is not None:
                for told in batch:
                    told(self._inner)
        except Exception as error:  # noqa: BLE001 - raised to whoever tells the next thing
            with self._changed:
                self._error = error
        finally:
            self._at_end()

    def _next(self) -> list[Told] | None:
        """What is new, waited for; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._snapshot or self._told)
            batch = list(self._told)
            self._told.clear()
            if self._num_left_out:
                batch.insert(0, _gap(self._num_left_out))
                self._num_left_out = 0
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                batch.append(lambda inner: inner.on_snapshot(snapshot))
            return batch or None


def _gap(num: int) -> Told:
    text = f"{num} steps and events were not shown: nobody read what was printed meanwhile"
    event = EventReported(source="display", kind="late", text=text)
    return lambda inner: inner.on_event(event)
