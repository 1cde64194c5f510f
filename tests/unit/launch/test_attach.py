"""Which run is meant, and what stands between a client and it: in words, whatever lies there."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from milepost.launch.attach import Damaged, Unreachable, find_run, take_run
from milepost.launch.cli import run_command
from milepost.launch.exits import Exit

FACTS = {"run_id": "r", "endpoint": "ipc://x", "statistics": "ipc://y", "pid": 1, "ended": False}
LONG = "a" * 5000


def a_run(folder: Path, facts: object = FACTS, registry: str = '{"kind": "closed"}\n') -> Path:
    """A run folder, as far as clients look at it; its supervisor is gone."""
    (folder / ".milepost").mkdir(parents=True)
    (folder / ".milepost/run.json").write_text(json.dumps(facts))
    (folder / ".milepost/registry.jsonl").write_text(registry)
    return folder


def test_a_run_whose_supervisor_is_gone_is_told_from_one_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="is gone, `milepost reap"):
        find_run(a_run(tmp_path / "a"))
    with pytest.raises(Unreachable, match="has ended"):
        find_run(a_run(tmp_path / "b", {**FACTS, "ended": True}))
    with pytest.raises(Unreachable, match=r"holds no run: .*run.json is missing"):
        find_run(tmp_path / "c")


@pytest.mark.parametrize("facts", [[], None, {}, {**FACTS, "pid": "x"}, {**FACTS, "ended": None}])
def test_a_damaged_run_file_is_said_with_what_can_be_read_all_the_same(
    tmp_path: Path, facts: object
) -> None:
    """Whoever has a damaged folder wants to know what still works on it."""
    with pytest.raises(Damaged, match=r"cannot be read .*milepost monitor`, `view` and `audit`"):
        find_run(a_run(tmp_path / "a", facts))


def test_a_damaged_registry_is_said_too(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"registry.jsonl:1"):
        find_run(a_run(tmp_path / "a", registry="{nonsense\n"))


def test_one_damaged_folder_among_many_does_not_hide_why_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command looks through runs/ when no run is named."""
    monkeypatch.chdir(tmp_path)
    a_run(Path("runs/good"), {**FACTS, "ended": True})
    a_run(Path("runs/bad"), [])
    with pytest.raises(Unreachable, match=r"no run goes on under .*; nobody can attach .*runs/bad"):
        find_run(None)


@pytest.mark.parametrize("word", [LONG, f"./{LONG}"])
def test_a_word_longer_than_a_name_may_be_is_no_crash(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
) -> None:
    """What was pasted in place of a name comes back as one line, and not as a traceback."""
    monkeypatch.chdir(tmp_path)
    for command in (["trace", word], ["tap", word, "a -> b"], ["freeze", word]):
        assert run_command(command[0], command[1:]) in {Exit.UNREACHABLE, Exit.REFUSED}
        assert len(capsys.readouterr().err) < len(LONG) + 400


def test_a_path_in_front_names_the_run(tmp_path: Path) -> None:
    arguments = Namespace(run=None)
    assert take_run(arguments, [str(tmp_path), "g1"]) == ["g1"]
    assert arguments.run == tmp_path
    assert take_run(arguments, ["g1"]) == ["g1"]


def test_a_killed_run_is_not_said_to_have_had_no_rollout_actor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever cleaned up behind it wrote a summary without a word of its actors."""
    (tmp_path / "summary.json").write_text('{"status": "killed"}')
    assert run_command("account", ["--run", str(tmp_path)]) == Exit.FAILED
    assert "was killed, and with it the last word of its actors" in capsys.readouterr().err


def test_books_that_cannot_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text('{"statistics": {"rollout": ')
    assert run_command("account", ["--run", str(tmp_path)]) == Exit.FAILED
    assert "summary.json is damaged" in capsys.readouterr().err
