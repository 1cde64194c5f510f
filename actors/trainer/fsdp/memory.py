"""Keeps the C library from giving memory back that the next operation asks for again."""

from __future__ import annotations

import ctypes
import platform
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
"""Of mallopt(3)."""

MIB: Final = 1 << 20


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory, and take blocks up to 32 MiB from it.

    A training step on the CPU allocates and frees the same activations again and again. By default
    glibc returns large blocks to the kernel at once, and every page of the next one is faulted in
    and zeroed: 3,000 to 15,000 faults a step of the quick start, 5 % of its time.

    Returns:
        False where the C library is another one; then nothing has changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    settings = (
        (M_MMAP_THRESHOLD, 32 * MIB),
        (M_TRIM_THRESHOLD, 1024 * MIB),
        (M_TOP_PAD, 64 * MIB),
    )
    return all(library.mallopt(name, value) == 1 for name, value in settings)
