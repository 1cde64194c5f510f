"""The Python stacks of every thread and task of this process, for `milepost stacks`."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback


def all_stacks() -> str:
    """Readable stacks: threads first, then the tasks of the running event loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    out = io.StringIO()
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
        out.write(f"thread {names.get(ident, ident)}\n")
        out.write("".join(traceback.format_stack(frame)))
    for task in asyncio.all_tasks():
        out.write(f"task {task.get_name()}\n")
        for frame in task.get_stack():
            out.write("".join(traceback.format_stack(frame, limit=1)))
    return out.getvalue()
