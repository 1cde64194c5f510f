"""Recordings that bits rotted in: what is left is read, and what is missing is said."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from unit.recorder.test_recorder import OPENED, opened, record, recorder_path, spec

from milepost.actors.commands import say
from milepost.actors.effects import Received
from milepost.actors.recorder.payloads import read_payloads
from milepost.actors.recorder.pins import write_pin
from milepost.actors.recorder.reading import read_recording, read_recordings
from milepost.actors.recorder.recorder import FOLDER, Recorder
from milepost.actors.recorder.replay.__main__ import _replay
from milepost.actors.recorder.replay.tape import ReplayRefused, Tape, Until
from milepost.actors.recorder.ring import HEADER_BYTES, Ring, RingDamaged
from milepost.actors.recorder.story import story
from milepost.configs.dump import dump_topology, topology_hash
from milepost.launch.cli import run_command
from milepost.launch.exits import Exit
from milepost.messages.rollout import GroupStored

COUNT = 40


def recorded(folder: Path) -> None:
    """A full recording of a buffer: `COUNT` lines of about one size."""
    given = spec(folder, payloads=True, ring_bytes=1 << 16)
    (folder / "topology.toml").write_text(dump_topology(given.topology))
    given = given.__class__(
        **{name: getattr(given, name) for name in given.__struct_fields__}
        | {"topology_hash": topology_hash(given.topology)}
    )
    recorder = Recorder.open(given)
    assert recorder is not None
    for number in range(COUNT):
        record(recorder, Received("a", GroupStored(group_id=f"g{number}", num_tokens=1)), 0.0, [])
    recorder.close()


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def end_of(path: Path) -> int:
    """Where the newest record of a ring ends."""
    return HEADER_BYTES + int.from_bytes(path.read_bytes()[24:32], "little")


def test_a_replay_never_passes_over_a_line_that_is_missing(tmp_path: Path) -> None:
    """It would say that every decision was the same, of a run that never happened."""
    recorded(tmp_path)
    assert len(Tape.read(tmp_path, "buffer", Until()).lines) == COUNT
    ring = recorder_path(tmp_path)
    flip(ring, (HEADER_BYTES + end_of(ring)) // 2)
    (found,) = read_recordings(tmp_path / FOLDER)
    assert len(found.lines) == COUNT - 1, "those behind it are there"
    missing = next(at for at, line in enumerate(found.lines) if line.number != at)
    with pytest.raises(ReplayRefused, match=f"buffer-0.ring.*--until line={missing - 1} goes"):
        Tape.read(tmp_path, "buffer", Until())
    with pytest.raises(ReplayRefused, match="is not whole"):
        Tape.read(tmp_path, "buffer", Until("line", missing))
    cut = Tape.read(tmp_path, "buffer", Until("line", missing - 1))
    assert [line.number for line in cut.lines] == list(range(missing))


def test_a_replay_misses_an_end_that_is_damaged(tmp_path: Path) -> None:
    """No line behind it has a number that would tell."""
    recorded(tmp_path)
    flip(recorder_path(tmp_path), end_of(recorder_path(tmp_path)) - 12)
    with pytest.raises(ReplayRefused, match=f"--until line={COUNT - 2} goes as far"):
        Tape.read(tmp_path, "buffer", Until())


@pytest.mark.parametrize(
    "name", ["buffer-0.earlier.ring", "buffer-0.run.pin-0.zst", "buffer-1.ring"]
)
def test_files_of_other_lives_and_pins_refuse_no_whole_recording(tmp_path: Path, name: str) -> None:
    """A run that was resumed behind a power cut has them: it "goes as far as" its end was said."""
    recorded(tmp_path)
    (tmp_path / FOLDER / name).write_bytes(b"nonsense")
    tape = Tape.read(tmp_path, "buffer", Until())
    assert len(tape.lines) == COUNT
    assert [line for line in tape.unread if name in line] == tape.unread != []


def test_a_pin_alone_is_not_taken_for_the_whole_life(tmp_path: Path) -> None:
    """The ring had its last lines; no number tells how many."""
    recorded(tmp_path)
    ring = recorder_path(tmp_path)
    write_pin(ring, "run", ring.read_bytes(), "why", pins_max=1)
    ring.write_bytes(b"nonsense")
    with pytest.raises(ReplayRefused, match=f"buffer-0.ring.*--until line={COUNT - 1} goes as"):
        Tape.read(tmp_path, "buffer", Until())
    assert len(Tape.read(tmp_path, "buffer", Until("line", COUNT - 1)).lines) == COUNT


def test_damaged_contents_are_named_and_cost_themselves_alone(tmp_path: Path) -> None:
    """A length that became huge must not be taken for one: no machine has that memory."""
    recorded(tmp_path)
    path = tmp_path / FOLDER / "buffer-0.payloads"
    whole = path.read_bytes()
    every = list(read_payloads(path))
    first = 16 + len(every[0][1])
    damaged: list[str] = []
    flip(path, first - 1)
    assert list(read_payloads(path, damaged)) == every[1:]
    assert damaged == [f"{path}, byte 0: a content of {len(every[0][1])} bytes is damaged"]
    path.write_bytes(whole)
    flip(path, first + 15)
    assert list(read_payloads(path, damaged)) == every[:1]
    assert damaged[1:] == [f"{path}, byte {first}: nothing whole from there on"]
    tape = Tape.read(tmp_path, "buffer", Until())
    with pytest.raises(ReplayRefused, match=f"is not there .*buffer-0.payloads, byte {first}"):
        tape.event(tape.lines[1])


def test_a_trace_reads_what_can_be_read_and_says_what_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file among many is no reason to tell nothing of a run that died."""
    recorded(tmp_path)
    flip(recorder_path(tmp_path), end_of(recorder_path(tmp_path)) - 12)
    (tmp_path / FOLDER / "engine-0-0.ring").write_bytes(b"nonsense")
    assert run_command("trace", [str(tmp_path), "g3"]) == Exit.DONE
    told = capsys.readouterr()
    assert "GroupStored" in told.out
    assert "buffer-0.ring is damaged in 1 place, at byte" in told.err
    assert "engine-0-0.ring: 8 bytes without the mark" in told.err


def test_the_story_of_a_failure_is_told_beside_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    recorder = opened(tmp_path)
    record(recorder, Received("rollout", OPENED), 0.0, [])
    recorder.close()
    (tmp_path / FOLDER / "engine-0-0.ring").write_bytes(b"nonsense")
    unread, head, *_ = story(tmp_path / FOLDER, "run", "buffer", "it failed").splitlines()
    assert unread.startswith("a recording cannot be read: ")
    assert head.startswith("recorded about g0000001")


@pytest.mark.parametrize("about", [{}, [], None, {"actor": 1}])
def test_a_header_that_says_something_else_is_refused_by_name(
    tmp_path: Path, about: object
) -> None:
    Ring(tmp_path / "x-0.ring", 1 << 16, about).close()  # type: ignore[arg-type]
    with pytest.raises(RingDamaged, match=r"x-0\.ring: "):
        read_recording(tmp_path / "x-0.ring")


def test_words_that_would_compare_nothing_are_refused(tmp_path: Path) -> None:
    """A bound that is no number holds for every difference; an empty name fits every actor."""
    recorded(tmp_path)
    for bound in (float("nan"), float("inf"), -0.5):
        given = Namespace(run=tmp_path, actor="buffer", until="", bound=bound, json=False)
        with pytest.raises(ReplayRefused, match="is no relative difference"):
            _replay(given)
    with pytest.raises(ReplayRefused, match="nothing was recorded of '', there are buffer"):
        Tape.read(tmp_path, "", Until())


def test_contents_are_read_up_to_zeros_that_a_power_cut_left(tmp_path: Path) -> None:
    """Each 16 of them looked like a damaged content: half a million lines for 8 MiB."""
    recorded(tmp_path)
    path = tmp_path / FOLDER / "buffer-0.payloads"
    every, size = list(read_payloads(path)), path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(1 << 16))
    damaged: list[str] = []
    assert list(read_payloads(path, damaged)) == every
    assert damaged == [f"{path}, byte {size}: nothing whole from there on"]


def test_one_line_tells_of_all_contents_that_are_damaged(tmp_path: Path) -> None:
    recorded(tmp_path)
    path = tmp_path / FOLDER / "buffer-0.payloads"
    every = list(read_payloads(path))
    size = len(every[0][1])
    for number in range(3):
        flip(path, sum(16 + len(content) for _, content in every[: number + 1]) - 1)
    damaged: list[str] = []
    assert list(read_payloads(path, damaged)) == every[3:]
    more = "and 2 more places are not whole"
    assert damaged == [f"{path}, byte 0: a content of {size} bytes is damaged, {more}"]


def test_what_has_several_lines_is_said_on_as_many(capsys: pytest.CaptureFixture[str]) -> None:
    """All problems of a topology came on one line, with the numbers of line ends between."""
    say(["refused: $.a: one\n$.b: two\tthree", "a\x1b[2Jb"])
    assert capsys.readouterr().out == "refused: $.a: one\n$.b: two\tthree\na<U+001B>[2Jb\n"


@pytest.mark.parametrize("module", ["archive", "recorder.replay"])
def test_a_reader_that_went_away_is_no_fault(tmp_path: Path, module: str) -> None:
    """`milepost audit RUN | head -1` ends as every command does, without a traceback."""
    words = [str(tmp_path)] if module == "archive" else [str(tmp_path), "buffer"]
    if module == "archive":
        (tmp_path / "archive" / "buffer").mkdir(parents=True)
    there, here = os.pipe()
    os.close(there)
    command = [sys.executable, "-P", "-m", f"milepost.actors.{module}", *words]
    ended = subprocess.run(command, check=False, stdout=here, stderr=subprocess.PIPE, timeout=120)
    os.close(here)
    assert ended.stderr == b""
    assert ended.returncode == (0 if module == "archive" else 11)
