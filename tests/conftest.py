"""What every test gets: one thread for each library, and hypothesis that repeats itself in CI."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before anything imports torch: one OpenMP thread a process, as in a run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shared machine makes single examples slow for reasons that are not the code's.
settings.register_profile(
    "dev", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=200,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
