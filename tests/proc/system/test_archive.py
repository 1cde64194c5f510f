"""A run whose buffer is killed in its middle, and resumed: its archive is whole and audits well."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import GROUPS, MEMBERS, Start, environment, milepost

from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.reader import Archive, Query

pytestmark = pytest.mark.timeout(600)
STEPS = 4
HELD = "proc.system.agents:Held"
NO_ARCHIVE = 2
"""Exit code."""


def audited(start: Start) -> subprocess.CompletedProcess[str]:
    """`milepost audit RUN`."""
    return subprocess.run(
        [milepost(), "audit", str(start.folder / "run")],
        env=environment(start.folder),
        capture_output=True,
        text=True,
        timeout=200.0,
        check=False,
    )


def test_a_killed_buffer_leaves_an_archive_that_goes_on(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """Every trained trajectory is there once, with what the trainer computed of it.

    The buffer dies without a word; the run ends and is resumed. What had come and was lost with it
    is named, what was trained again counts in the step that trained it last.
    """
    start = Start(tmp_path, checkpoint, steps=STEPS, agent=HELD, options={"hold_from": 2 * GROUPS})
    run = launch(start)
    run.until(f"step 2/{STEPS}")
    # It writes twice a second, and steps can be quicker: it shall not die before its first word.
    assert any(audited(start).returncode != NO_ARCHIVE for _ in range(100))
    run.kill("buffer")
    assert run.end() == 1, run.text
    early = audited(start)
    assert early.returncode == 0, early.stdout
    assert "no faults" in early.stdout
    assert "has no closing record" in early.stdout
    run = launch(replace(start, options={"hold_from": 1_000_000}), resume=True)
    assert run.end() == 0, run.text
    late = audited(start)
    assert late.returncode == 0, late.stdout
    assert "buffer was killed after its record" in late.stdout
    with Archive.open(run.folder) as archive:
        entries = archive.select(Query(), limit=10_000)
        trained = [entry for entry in entries if entry.step is not None]
        per_step = Counter(entry.step for entry in trained)
        stored = [archive.read(e.trajectory_id, e.attempt) for e in trained if e.step == STEPS - 1]
    assert per_step[STEPS - 1] == GROUPS * MEMBERS
    assert all(per_step[step] >= GROUPS * MEMBERS for step in range(STEPS)), per_step
    assert {entry.verdict for entry in trained} == {Verdict.STORED}
    for each in stored:
        assert each.training is not None
        assert each.training.logprobs is not None
        assert each.training.logprobs.shape == (each.trajectory.num_sampled_tokens,)
