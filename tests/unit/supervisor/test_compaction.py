"""The registry written anew: it says the same in fewer lines, and no death in between loses it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.supervisor.cleanup.compaction import Growth, compact, live_lines
from milepost.supervisor.cleanup.processes import identity_of
from milepost.supervisor.cleanup.registry import (
    PRIVATE,
    Registry,
    identity_record,
    owned_of,
    read_registry,
)

ME = identity_record(identity_of(os.getpid()) or pytest.fail("this process is alive"))
GONE = {**ME, "started": ME["started"] - 1}
RUN = {"kind": "run", "run_id": "ab", "supervisor": ME}
NAMES = st.sampled_from("abc")
RECORDS = st.one_of(
    st.builds(lambda name: {**RUN, "run_id": name}, NAMES),
    st.builds(lambda who: {"kind": "process", "actor": "a", **who}, st.sampled_from([ME, GONE])),
    st.builds(lambda name: {"kind": "folder", "path": f"/tmp/{name}"}, NAMES),
    st.builds(lambda name: {"kind": "segments", "prefix": name}, NAMES),
    st.builds(
        lambda name, inode: {"kind": "listener", "actor": name, "endpoint": "e", "inode": inode},
        NAMES,
        st.integers(1, 9),
    ),
    st.builds(
        lambda name, until: {"kind": "command", "name": name, "argv": [name], **until},
        NAMES,
        st.one_of(st.just({}), st.builds(lambda at: {"lease_until": at}, st.floats(0, 9))),
    ),
    st.builds(lambda name: {"kind": "released", "name": name}, NAMES),
    st.just({"kind": "closed"}),
)


def text_of(records: list[dict[str, Any]]) -> bytes:
    """As `Registry` writes them: each line has its moment."""
    lines = [json.dumps({**record, "at": at}) for at, record in enumerate(records)]
    return "".join(f"{line}\n" for line in lines).encode()


@given(st.lists(RECORDS, max_size=30), st.binary(max_size=5))
def test_it_says_the_same_but_for_processes_that_are_gone(
    records: list[dict[str, Any]], cut_off: bytes
) -> None:
    text = text_of(records)
    before = owned_of(text, "before")
    rest = cut_off.replace(b"\n", b"")
    after = owned_of(b"".join(live_lines(text + rest)), "after")
    before.processes = sorted({one for one in before.processes if one.alive}, key=hash)
    assert after == before
    assert live_lines(b"".join(live_lines(text))) == live_lines(text)


def test_a_lease_renewed_for_days_is_one_line(tmp_path: Path) -> None:
    """Every renewal is on disk at once, and no renewal makes the file grow for good."""
    (tmp_path / PRIVATE).mkdir()
    registry, growth = Registry(tmp_path), Growth(bytes_min=1024)
    lease = {"kind": "command", "name": "box", "actor": "agent-0", "argv": ["true"]}
    registry.append(RUN)
    sizes = []
    for number in range(50):
        registry.append({**lease, "lease_until": float(number)})
        assert read_registry(tmp_path).leases == {"box": float(number)}
        if growth.is_due(registry.path):
            compact(registry.path)
            growth.tried(registry.path)
        sizes.append(registry.path.stat().st_size)
    assert max(sizes) < 1024 + 200 < 50 * 100, "fifty lines have more"
    assert [path.name for path in (tmp_path / PRIVATE).iterdir()] == ["registry.jsonl"]


def test_a_registry_that_is_all_alive_is_not_written_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    registry, growth, num_times = Registry(tmp_path), Growth(bytes_min=1000), 0
    for number in range(100):
        registry.append({"kind": "command", "name": f"box-{number}", "argv": ["true"] * 5})
        if growth.is_due(registry.path):
            compact(registry.path)
            growth.tried(registry.path)
            num_times += 1
    assert num_times <= 4, "each time it has grown to four times of what it was"
    assert len(read_registry(tmp_path).commands) == 100


def lines_of(act: Callable[[], None], kill_at: int) -> int:
    """Do it, and die at this line of `compact`; 0 never dies. The number of lines."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        del argument
        if frame.f_code is not compact.__code__:
            return None
        if event == "line":
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def test_a_kill_at_any_line_leaves_all_that_the_run_owns(tmp_path: Path) -> None:
    """The next life goes on from there, and writes it anew over whatever draft is left."""
    (tmp_path / PRIVATE).mkdir()
    registry = Registry(tmp_path)
    lease = {"kind": "command", "name": "box", "argv": ["true"]}
    registry.append(RUN, {"kind": "folder", "path": "/tmp/a"}, lease, {**lease, "lease_until": 7.0})
    text = registry.path.read_bytes()
    owned = read_registry(tmp_path)
    total = lines_of(lambda: compact(registry.path), 0)
    assert registry.path.read_bytes() != text
    for kill_at in range(1, total + 1):
        registry.path.write_bytes(text)
        child = os.fork()
        if child == 0:
            lines_of(lambda: compact(registry.path), kill_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"nothing happened at line {kill_at}"
        assert read_registry(tmp_path) == owned, f"killed at line {kill_at}"
    compact(registry.path)
    assert read_registry(tmp_path) == owned


def test_what_a_crash_left_of_a_line_is_cut_off_before_the_next_life(tmp_path: Path) -> None:
    """Appended to half a line, the first record of the next life would spoil the whole file."""
    (tmp_path / PRIVATE).mkdir()
    registry = Registry(tmp_path)
    registry.mend()
    registry.append(RUN)
    with registry.path.open("ab") as file:
        file.write(b'{"kind": "fol')
    registry.mend()
    registry.append({"kind": "folder", "path": "/tmp/a"})
    assert read_registry(tmp_path).folders == [Path("/tmp/a")]
