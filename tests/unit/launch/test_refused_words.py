"""What an attached command cannot do as it was told is refused before anybody is asked."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from pathlib import Path
from types import ModuleType

import pytest

from milepost.configs.problem import ConfigError
from milepost.launch.commands import (
    audit,
    freeze,
    monitor,
    pin,
    prometheus,
    ps,
    queues,
    reap,
    replay,
    run,
    tail,
    tap,
    view,
)
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path


def parsed(command: ModuleType, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_a_negative_time_does_not_freeze_for_as_long_as_may_be() -> None:
    with pytest.raises(ConfigError, match="--seconds = -5"):
        freeze.run(parsed(freeze, "buffer", "--seconds=-5"))


@pytest.mark.parametrize(
    ("command", "words", "what"),
    [
        (freeze, ("buffer", "--seconds=0"), "--seconds = 0"),
        (tap, ("a -> b", "--limit=0"), "--limit = 0"),
        (tap, ("a -> b", "--limit=-1"), "--limit = -1"),
        (tail, ("--lines=-5",), "--lines = -5"),
        (monitor, ("--every=inf",), "--every = inf"),
        (monitor, ("--every=nan",), "--every = nan"),
        (monitor, ("--every=0.1",), "--every = 0.1"),
    ],
)
def test_a_number_without_a_meaning_is_refused(
    command: ModuleType, words: tuple[str, ...], what: str
) -> None:
    """`--limit 0` would go on for ever, and `--lines -5` show nothing: neither was meant."""
    with pytest.raises(ConfigError, match=what):
        command.run(parsed(command, *words))


def test_of_two_actors_to_pin_none_is_left_out_in_silence() -> None:
    with pytest.raises(ConfigError, match="2 names: trainer-0, buffer"):
        pin.run(parsed(pin, "trainer-0", "buffer"))


def test_an_empty_key_opens_no_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not on this machine either: whoever named a key wants one."""
    key = tmp_path / "key"
    key.write_text("\n")
    assert prometheus.run(parsed(prometheus, "--key-file", str(key))) == Exit.REFUSED
    assert "is empty" in capsys.readouterr().err


def test_a_port_that_there_is_not_is_refused_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert prometheus.run(parsed(prometheus, "--listen", "127.0.0.1:99999")) == Exit.REFUSED
    assert "99999 is no port" in capsys.readouterr().err


@pytest.mark.parametrize("command", [run, monitor, reap, replay, audit, view, ps])
def test_a_folder_that_cannot_be_is_refused_without_a_traceback(
    command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word of a shell that went wrong: names have at most 255 bytes."""
    name = "x" * 300
    words = {run: ("lookup", "--out", name), ps: ("--run", name)}.get(command, (name,))
    with pytest.raises(SystemExit) as caught:
        parsed(command, *words)
    assert caught.value.code == Exit.REFUSED
    told = capsys.readouterr().err
    assert "File name too long" in told
    assert len(told) < 1500


def test_a_path_is_possible_where_nothing_is_yet_and_not_where_links_go_round(
    tmp_path: Path,
) -> None:
    """`Path.exists` says False to a loop: the run would begin, and fail where it writes."""
    loop, file = tmp_path / "a", tmp_path / "file"
    loop.symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(loop)
    file.touch()
    for path in (loop, loop / "run"):
        with pytest.raises(ArgumentTypeError, match="symbolic links"):
            possible_path(str(path))
    for path in (tmp_path, tmp_path / "none" / "yet", file / "below"):
        assert possible_path(str(path)) == path


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1", "soon"])
def test_a_pause_that_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(queues, f"--interval={text}")
    assert f"'{text}' is no number of seconds above 0" in capsys.readouterr().err
