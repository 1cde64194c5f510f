"""The command line finds its commands, answers quickly, and says what is wrong in one line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.launch import cli
from milepost.launch.cli import command_names, main, module_name, summary
from milepost.launch.exits import Exit

SMALL = """
[run]
name = "toy"
steps = 1
[custom.echo]
core = "os:getcwd"
significant = true
"""


@pytest.fixture
def toy(tmp_path: Path) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def test_help_lists_every_command_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == Exit.DONE
    page = capsys.readouterr().out
    assert {"check", "run"} <= set(command_names())
    for name in command_names():
        assert f"  {name} " in page
        assert summary(name) in page


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"], ["check", "--help"]])
def test_asking_for_help_imports_nothing_heavy(words: list[str]) -> None:
    """Whoever types a command wrongly must not wait for torch to say so."""
    script = (
        "import sys\n"
        "from milepost.launch.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'zmq', 'numpy', 'transformers', 'tokenizers', 'rich', 'matplotlib'}\n"
        "print('loaded', sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-P", "-c", script, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "loaded []"


def test_an_unknown_command_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == Exit.REFUSED
    assert capsys.readouterr().err == "error: unknown command `chekc`, did you mean `check`\n"


def test_no_command_at_all_shows_what_there_is_and_is_no_success() -> None:
    assert main([]) == Exit.REFUSED


def test_a_terminal_without_unicode_gets_question_marks_and_no_failure() -> None:
    """The bars of a curve under `LC_ALL=C` ended a good run with a traceback."""
    plain = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    code = (
        "import sys; from milepost.launch import cli; cli.main(['--help']); "
        "print('\\u2581 bars'); print('\\u2581', file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        check=False,
        env=plain,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "? bars")


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself_in_one_way(name: str) -> None:
    """A docstring for people, --json for programs, no abbreviations that break later."""
    module = import_module(f"milepost.launch.commands.{module_name(name)}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    assert len(summary(name)) <= 100
    assert "--json" in parser.format_help()
    assert callable(module.run)


@pytest.mark.parametrize("name", command_names())
def test_options_are_long_and_a_wrong_one_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 without a traceback, and scripts that still say what they do after a year."""
    module = import_module(f"milepost.launch.commands.{module_name(name)}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    options = [word for action in parser._actions for word in action.option_strings]
    assert [word for word in options if not word.startswith("--")] == ["-h"]
    with pytest.raises(SystemExit) as ended:
        main([name, "--no-such-option"])
    assert ended.value.code == Exit.REFUSED
    assert f"usage: milepost {name}" in capsys.readouterr().err


ATTACHED = {
    "ps": [],
    "queues": [],
    "why": [],
    "tail": ["events"],
    "tap": ["a -> b"],
    "stacks": ["a-0"],
    "stop": [],
}


@pytest.mark.parametrize("name", ATTACHED)
def test_a_supervisor_that_is_not_there_is_exit_3(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *ATTACHED[name], "--run", str(tmp_path)]) == Exit.UNREACHABLE
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds no run")


def test_reaping_what_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reap", str(tmp_path)]) == Exit.REFUSED
    assert capsys.readouterr().err == f"error: {tmp_path} is no run folder\n"


def test_a_command_with_a_dash_lives_in_a_file_with_an_underscore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent_check.py").write_text('"""Try an agent."""\n', encoding="utf-8")
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(cli, "COMMANDS", tmp_path)
    assert command_names() == ("agent-check",)
    assert summary("agent-check") == "Try an agent"


def test_check_prints_a_line_for_each_check_and_refuses_by_code(
    toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", toy, "--set", "custom.echo.significant=false"]) == Exit.REFUSED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == " ok    the topology parses and has no unknown key"
    assert lines[1].startswith(" FAIL  ")
    assert lines[2] == "       $.custom: no actor says when this run is over"
    assert lines[3] == "       set significant = true in one of its tables"
    assert lines[-1].endswith("nothing was started (exit 2)")


def test_check_prints_the_problems_of_a_topology_that_cannot_be_read(
    toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", toy, "--set", "run.stepps=3", "--set", "run.steps=x"]) == Exit.REFUSED
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        " FAIL  the topology parses and has no unknown key",
        "       $.run: unknown key `stepps`",
        "       did you mean `steps`",
        '       $.run.steps: `steps` is "x": expected `int`, got `str`',
    ]
    assert lines[-1].startswith("2 problems")


def test_check_as_json_has_every_check_and_every_problem(
    toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", toy, "--json", "--set", "run.stepps=3"]) == Exit.REFUSED
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [check["state"] for check in document["checks"][:2]] == ["failed", "skipped"]
    assert document["checks"][0]["problems"] == [
        {"what": "unknown key `stepps`", "where": "$.run", "remedy": "did you mean `steps`"}
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "no topology at command line"),
        (["run", "lookup", "--out", "a", "--resume", "b"], "both --out and --resume"),
        (["run", "lokup"], "no recipe `lokup`"),
        (["run", "--resume", "no/such"], "no topology file"),
        (["run", "lookup", "--seed", "-1"], "`seed` is -1: expected `int` >= 0 at $.run.seed"),
    ],
)
def test_a_run_that_cannot_begin_is_refused_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == Exit.REFUSED
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.startswith("error: ")


def test_the_quick_start_leaves_a_folder_alone_that_holds_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither run nor report is written over it; standard output is kept for the summary."""
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    assert main(["quickstart", "--out", str(tmp_path), "--json"]) == Exit.REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(tmp_path) in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["check", "lookup"], Exit.DONE),
        (["check", "lookup", "--set", "data.prompts=x"], Exit.REFUSED),
        (["run", "lookup", "--set", "data.prompts=x"], Exit.REFUSED),
        (["ps", "--help"], Exit.DONE),
    ],
)
def test_a_reader_that_goes_away_is_no_fault_and_hides_none(words: list[str], code: Exit) -> None:
    """`milepost run lookup | head` trains on, and ends with how that went."""
    script = "import sys\nfrom milepost.launch.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-P", "-c", script, *words],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (result.returncode, b"Traceback" in result.stderr) == (code, False)


def test_check_says_whether_a_run_could_go_on_without_touching_it(
    toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same list as the head of `milepost run --resume`, which takes the folder over first."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    loads = load_topology(toy, ["custom.echo.core=os:fspath"])
    (folder / "topology.toml").write_text(dump_topology(loads), encoding="utf-8")
    before = sorted(folder.rglob("*"))
    assert main(["check", "--resume", str(folder)]) == Exit.DONE
    assert "no whole checkpoint yet" in capsys.readouterr().out
    assert main(["check", toy, "--resume", str(folder), "--set", "run.seed=7"]) == Exit.REFUSED
    assert "$.run.seed: seed was 0 in the run to resume, and is 7 now" in capsys.readouterr().out
    assert sorted(folder.rglob("*")) == before
    assert main(["check"]) == Exit.REFUSED
    assert "command line: no topology" in capsys.readouterr().out
