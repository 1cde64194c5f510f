"""Freed memory stays with the process: a training step must not pay for its pages again."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy
from milepost.actors.trainer.fsdp.memory import keep_freed_memory
assert keep_freed_memory()
numpy.ones(1 << 21)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    numpy.ones(1 << 21)
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_a_block_used_again_costs_no_page_faults() -> None:
    """Twenty times 16 MiB would be 82,000 faults, had each block to come from the kernel."""
    found = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    pages = 20 * (1 << 24) // resource.getpagesize()
    assert int(found.stdout) < pages / 100
