"""`python -P -m proc.supervised TOPOLOGY RUN [RESUME_STEP]`: one supervisor in its own process."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import uvloop

from milepost.configs.load import load_topology
from milepost.supervisor.display import PlainDisplay
from milepost.supervisor.folder import RunFolder
from milepost.supervisor.run import supervise


async def main() -> int:
    topology = load_topology(sys.argv[1])
    step = int(sys.argv[3]) if len(sys.argv) > 3 else None
    with closing(RunFolder(Path(sys.argv[2]))) as folder:
        outcome = await supervise(topology, folder=folder, resume_step=step, display=PlainDisplay())
    sys.stdout.write(f"end {outcome.status}\n")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
