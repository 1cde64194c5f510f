"""`milepost run` from the shell: exit codes, what is printed where, and what is left on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from proc.runs import custom, environment, topology

from milepost.configs.load import decode, load_topology
from milepost.launch.cache import cached_folder
from milepost.supervisor.checkpoints import whole_checkpoints

WORKER = custom("worker", "worker", "steps = 3", significant=True)
FAILING = custom("worker", "worker", "steps = 1000", significant=True) + custom(
    "bad", "later", 'what = "fail"'
)


def milepost(folder: Path, *words: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("milepost")), *words],
        cwd=folder,
        env={**environment(), "MILEPOST_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_run_that_did_its_work_ends_with_0_and_one_json_object(tmp_path: Path) -> None:
    """A script reads standard output; everything for people goes elsewhere."""
    source = write(tmp_path, topology(WORKER))
    result = milepost(tmp_path, "run", source, "--json", "--out", "run", "--seed", "5")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["status"] == "done"
    written = tomllib.loads((tmp_path / "run" / "topology.toml").read_text(encoding="utf-8"))
    assert decode(written) == load_topology(source, ["run.seed=5"])
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_folder_is_used_once(tmp_path: Path) -> None:
    """The second run would mix its metrics with those of the first."""
    source = write(tmp_path, topology(WORKER))
    assert milepost(tmp_path, "run", source, "--out", "run").returncode == 0
    before = (tmp_path / "run" / "summary.json").read_bytes()
    result = milepost(tmp_path, "run", source, "--out", "run")
    assert result.returncode == 2
    assert "the run folder is not empty" in result.stdout
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def test_without_a_folder_each_run_gets_one_of_its_own(tmp_path: Path) -> None:
    source = write(tmp_path, topology(WORKER))
    assert milepost(tmp_path, "run", source).returncode == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("trivial-")


def test_a_run_that_failed_ends_with_1_and_names_the_first_cause(tmp_path: Path) -> None:
    result = milepost(tmp_path, "run", write(tmp_path, topology(FAILING)), "--out", "run")
    assert result.returncode == 1
    assert "failed: bad-0: " in result.stdout


def test_a_run_that_is_refused_starts_nothing(tmp_path: Path) -> None:
    source = write(tmp_path, topology(custom("worker", "worker")))
    result = milepost(tmp_path, "run", source, "--out", "run")
    assert result.returncode == 2
    assert "no actor says when this run is over" in result.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(600)
def test_a_starting_checkpoint_is_made_once_and_the_run_goes_on_from_it(tmp_path: Path) -> None:
    """The way of the quick start, at its smallest: warm-up, cache, run, stop, resume."""
    warm_up = tmp_path / "warm.toml"
    warm_up.write_text("base = 'lookup_warmup'\n[run]\nsteps = 2\n", encoding="utf-8")
    source = write(
        tmp_path,
        "base = 'lookup'\n[run]\nsteps = 1\n"
        f"[model]\nmade_by = '{warm_up}'\n[actors]\nevaluator = false\n",
    )
    first = milepost(tmp_path, "run", source, "--plain", "--out", "run", timeout_s=300)
    assert first.returncode == 0, first.stdout
    assert "makes it now, in 2 steps" in first.stdout
    kept = cached_kept(tmp_path, warm_up)
    topology_before = (tmp_path / "run" / "topology.toml").read_text(encoding="utf-8")
    assert tomllib.loads(topology_before)["model"]["path"] == str(kept)
    assert whole_checkpoints(tmp_path / "run") == (1,)

    words = ["run", source, "--plain", "--resume", "run", "--set", "run.steps=2"]
    resumed = milepost(tmp_path, *words, timeout_s=300)
    assert resumed.returncode == 0, resumed.stdout
    assert f"starting checkpoint of `{warm_up}`: {kept}" in resumed.stdout
    assert 2 in whole_checkpoints(tmp_path / "run")


def cached_kept(folder: Path, warm_up: Path) -> Path:
    name = cached_folder(str(warm_up), load_topology(str(warm_up))).name
    kept = folder / "cache" / "checkpoints" / name
    assert (kept / "config.json").is_file()
    return kept
