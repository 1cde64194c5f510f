"""Every command with --json, against one small run while it goes on and after it has ended.

Scripts rest on three things: standard output is JSON or empty, never text beside it; the exit code
is one of the four; a refusal is on standard error.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from proc.runs import Running, custom, environment, running, topology

from milepost.launch.cli import command_names, main
from milepost.launch.exits import Exit

pytestmark = pytest.mark.timeout(180)
WORKER: Final = custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)
ACTORS: Final = WORKER + custom("idle", "idle")
EDGE: Final = "worker-0 -> supervisor"
Say = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One command line; RUN, FILE and NOTHING in it are paths.

    Attributes:
        words: without --json.
        code: that it ends with.
        keys: some of its one object; None: nothing is on standard output.
        each: some of the object on every line, where there is one for each thing told.
    """

    words: str
    code: Exit
    keys: frozenset[str] | None = None
    each: frozenset[str] | None = None


def one(words: str, *keys: str, code: Exit = Exit.DONE) -> Case:
    """A command that prints one object."""
    return Case(words, code, frozenset(keys))


def lines(words: str, *keys: str) -> Case:
    """A command that prints an object on each line."""
    return Case(words, Exit.DONE, each=frozenset(keys))


def no(words: str, code: Exit) -> Case:
    """A command that says on standard error why it does not."""
    return Case(words, code)


GOES_ON: Final = (
    one("check FILE", "ok", "checks"),
    one("ps --run RUN", "run", "actors"),
    one("queues --interval 0.2 --run RUN", "queues"),
    one("why --run RUN", "run", "actors", "trouble", "missing"),
    one("why idle-0 --run RUN", "run", "actors"),
    no("why idle-7 --run RUN", Exit.FAILED),
    one("stacks idle-0 --run RUN", "actor", "stacks"),
    no("stacks idle-7 --run RUN", Exit.FAILED),
    lines("tail events --no-follow --run RUN", "source", "kind", "text"),
    lines("tail metrics --no-follow --lines 3 --run RUN", "step", "time"),
    lines("tail idle-0 --no-follow --run RUN", "log", "line"),
    no("tail idle-7 --no-follow --run RUN", Exit.FAILED),
    lines("tap EDGE --limit 3 --run RUN", "source", "to", "kind"),
    no("tap worker-1->supervisor --limit 1 --run RUN", Exit.REFUSED),
    one("pin idle-0 --run RUN", "files", "refused"),
    no("pin idle-7 --run RUN", Exit.FAILED),
    one("freeze idle-0 --seconds 20 --run RUN", "actors", "seconds", "refused"),
    one("thaw --run RUN", "actors"),
    no("freeze --seconds -1 --run RUN", Exit.REFUSED),
    one("trace g0.0 --run RUN", "trajectory", "moments", "notes", code=Exit.FAILED),
    no("trace g0.0 g0.1 --run RUN", Exit.REFUSED),
    one("monitor --run RUN", "run", "actors"),
    no("account --run RUN", Exit.FAILED),
    no("audit RUN", Exit.REFUSED),
    no("reap RUN", Exit.REFUSED),
    no("ps --run NOTHING", Exit.UNREACHABLE),
    one("stop --run RUN --reason enough", "run", "phase"),
)
"""In this order: the last one ends it."""

ENDED: Final = (
    *(
        no(f"{words} --run RUN", Exit.UNREACHABLE)
        for words in (
            "ps",
            "queues",
            "why",
            "stacks idle-0",
            "tail",
            "tap EDGE",
            "pin",
            "freeze",
            "thaw",
            "stop",
            "prometheus",
        )
    ),
    one("monitor --run RUN", "run", "actors"),
    one("trace g0.0 --run RUN", "trajectory", "moments", "notes", code=Exit.FAILED),
    no("account --run RUN", Exit.FAILED),
    no("audit RUN", Exit.REFUSED),
    one("reap RUN", "processes", "folders", "problems"),
    no("reap NOTHING", Exit.REFUSED),
    one("replay RUN --actor idle-7", "refused", code=Exit.REFUSED),
)

ELSEWHERE: Final = {
    "run": "test_run_command.py",
    "quickstart": "../unit/launch/test_cli.py",
    "view": "test_view.py",
    "agent": "test_guests.py",
    "agent-check": "test_agent_check.py",
    "check-template": "test_check_template.py",
}
"""Commands that start something of their own, and where their --json is tried."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("json"), topology(ACTORS)) as run:
        run.until("step 28")
        yield run


@pytest.fixture
def say(
    run: Running,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Say:
    """Gives a command line to the program: its exit code, standard output and error."""
    places = {
        "RUN": str(run.folder),
        "FILE": str(run.folder / "topology.toml"),
        "NOTHING": str(tmp_path),
        "EDGE": EDGE,
    }

    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # for `check`

    def say(words: str) -> tuple[int, str, str]:
        command = [places.get(word, word) for word in words.split()]
        capfd.readouterr()
        try:
            code = main([*command, "--json"])
        except SystemExit as end:  # of the parser
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return say


def check(case: Case, say: Say) -> None:
    code, out, err = say(case.words)
    assert code == case.code, (case.words, out, err)
    if case.each is not None:
        told = [json.loads(line) for line in out.splitlines()]
        assert all(case.each <= set(each) for each in told), (case.words, told)
        # A quiet actor has written nothing.
        assert told or case.words.startswith("tail idle-0"), case.words
    elif case.keys is not None:
        told = json.loads(out)
        assert case.keys <= set(told), (case.words, sorted(told))
    else:
        assert out == "", case.words
        assert err, case.words


def test_every_command_prints_json_or_nothing_while_the_run_goes_on(run: Running, say: Say) -> None:
    for case in GOES_ON:
        assert run.process.poll() is None, case.words
        check(case, say)
    assert run.end() == 1
    assert run.summary["cause"]["text"] == "enough"


def test_every_command_prints_json_or_nothing_when_the_run_has_ended(
    run: Running, say: Say
) -> None:
    """Or refuses: nobody answers is another exit code than no."""
    if run.process.poll() is None:
        run.signal(signal.SIGINT)
        run.end()
    for case in ENDED:
        check(case, say)


def test_no_command_is_left_out() -> None:
    """A new command without a case here fails, until somebody says what it prints."""
    tried = {case.words.split()[0] for case in (*GOES_ON, *ENDED)} | set(ELSEWHERE)
    assert tried == set(command_names())
    for name, file in ELSEWHERE.items():
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        assert "--json" in text, f"{file} does not try {name} --json"
