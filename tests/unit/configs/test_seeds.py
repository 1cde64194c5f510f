"""One seed in the topology reaches everything, and reaches it the same way everywhere."""

from __future__ import annotations

import subprocess
import sys

from milepost.configs.seeds import derive_seed


def test_different_uses_get_different_streams() -> None:
    """Two actors that drew the same numbers would explore the same trajectories."""
    names = [("engine-0",), ("engine-1",), ("engine", 0), ("engine-0", "sampling"), ()]
    assert len({derive_seed(7, *name) for name in names}) == len(names)
    assert derive_seed(7, "a") != derive_seed(8, "a")


def test_names_do_not_run_into_each_other() -> None:
    """("ab", "c") and ("a", "bc") are different uses."""
    assert derive_seed(0, "ab", "c") != derive_seed(0, "a", "bc")


def test_the_same_seed_comes_out_in_another_process() -> None:
    """Python's own `hash` of a string differs between processes; this must not."""
    code = "from milepost.configs.seeds import derive_seed; print(derive_seed(3, 'engine-0', 5))"
    command = [sys.executable, "-P", "-c", code]
    other = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    assert int(other.stdout) == derive_seed(3, "engine-0", 5)
    assert 0 <= derive_seed(3, "engine-0", 5) < 2**63
