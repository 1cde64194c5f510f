"""What a run prints goes on without its reader: a training is not ended by `| head`."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GONE: Final = (errno.EPIPE, errno.EIO)
"""The other end of a pipe, or the terminal, is no more."""


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within it, what is printed to a reader that has gone goes nowhere, and nobody raises."""
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(_lasting(sys.stdout, stack)))
        stack.enter_context(redirect_stderr(_lasting(sys.stderr, stack)))
        yield


def _lasting(stream: TextIO, stack: ExitStack) -> TextIO:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # nothing that could lose its reader
        return stream
    stream.flush()
    found = io.TextIOWrapper(
        io.BufferedWriter(_File(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
    stack.callback(found.detach)
    stack.callback(found.flush)
    return found


class _File(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)
