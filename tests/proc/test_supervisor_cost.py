"""What ten trivial actors cost: seconds to start and stop, memory each."""

from __future__ import annotations

import signal
from pathlib import Path

from proc.runs import custom, leftovers, running, topology

TEN = custom("idle", "idle", replicas=10)
START_CPU_S_MAX = 8.0
"""Processor time of all eleven processes until they are ready: half of it is a core's second."""
RSS_MIB_MAX = 40.0


def test_ten_actors_start_fast_stay_small_and_import_no_torch(tmp_path: Path) -> None:
    """On two idle cores: ready in under 2 s, gone in under 1 s. Shared machines are slower, so
    the test bounds processor time; wall times are printed by tests/bench."""
    with running(tmp_path, topology(TEN)) as run:
        run.begun()
        children = run.children()
        assert len(children) == 11
        spent_s = sum(sum(child.cpu_times()[:2]) for child in children.values())
        assert spent_s < START_CPU_S_MAX
        big = {name: child.memory_info().rss / 2**20 for name, child in children.items()}
        assert max(big.values()) < RSS_MIB_MAX, big
        for child in children.values():
            maps = Path(f"/proc/{child.pid}/maps").read_text()
            assert "torch" not in maps
            assert "numpy" not in maps
        run.signal(signal.SIGINT)
        assert run.end() == 1
        seconds = run.summary["seconds"]
        assert seconds["draining"] + seconds["stopping"] < 5.0
        assert leftovers(run.run_id, run.sockets) == []
