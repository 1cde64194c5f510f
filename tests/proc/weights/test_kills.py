"""SIGKILL at every line of what writes to the disk: what is left is a version, or it is not there.

Children are forked, so that hundreds of deaths take seconds. What a worker process would do is done
in the child itself, by the worker's own function.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from proc.weights.kit import Scene, moved

from milepost.actors.weights import delta_writer, files, full, local_copy, shards, versions
from milepost.actors.weights.encode_worker import Share, encode_share
from milepost.actors.weights.encoder import Encoded, Encoder, name_shards
from milepost.actors.weights.payloads import PayloadWriter

FILES: Final = frozenset(
    module.__file__ for module in (delta_writer, files, full, local_copy, shards, versions)
)
STEPS_MAX: Final = 50
"""Deaths of one test; longer ways are tried at every second or third line."""


class InProcess(Encoder):
    """Does the workers' work itself."""

    def encode(self, folder: Path, *, old: int, new: int, deadline_s: float) -> Encoded:
        del deadline_s
        names = [name for share in self._shares for name in share]
        path = folder / "share-00000.safetensors"
        share = Share(path=str(path), names=tuple(names), old=old, new=new)
        done = encode_share(share, self._arenas, PayloadWriter("chunks", "xxh3-128"), "xxh3-128")
        return name_shards([(path, done)] if done.file_bytes else [])


def lines_of(act: Callable[[], None], kill_at: int) -> int:
    """Do it, and die at this line of the files above; 0 never dies. The number of lines."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        del argument
        if frame.f_code.co_filename not in FILES:
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


def die(act: Callable[[], None], kill_at: int) -> None:
    """Do it in a child that is killed on the way."""
    child = os.fork()
    if child == 0:
        lines_of(act, kill_at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"nothing happened at line {kill_at}"


def begin(root: Path, keep: int) -> Scene:
    """Version 0 is published, and a host has it."""
    scene = Scene(root, keep=keep)
    scene.encoder_kind = InProcess
    scene.publish(0, scene.tensors)
    scene.pull(0)
    scene.close()
    return scene


def each_death(
    tmp_path: Path, keep: int, act: Callable[[Scene], None], check: Callable[[Scene, int], None]
) -> None:
    """Count the lines of `act` once, then die at each of them in a fresh folder, and check."""
    scene = begin(tmp_path / "count", keep)
    total = lines_of(lambda: act(scene), 0)
    scene.close()
    assert total > 20
    stride = -(-total // STEPS_MAX)
    for kill_at in range(1, total + 1, stride):
        root = tmp_path / "scene"
        scene = begin(root, keep)
        die(lambda at=scene: act(at), kill_at)  # type: ignore[misc]
        check(scene, kill_at)
        scene.close()
        shutil.rmtree(root)


@pytest.mark.parametrize("keep", [100, 1], ids=["a difference", "a full version, and pruning"])
def test_a_writer_may_die_at_every_line(tmp_path: Path, keep: int) -> None:
    """Complete versions are right, the next life begins at a confirmed one and goes on."""

    def act(scene: Scene) -> None:
        scene.open(1)
        scene.publish(1)

    def check(scene: Scene, kill_at: int) -> None:
        at_0, at_1 = scene.tensors, moved(scene.tensors, 1)
        complete = scene.versions.complete()
        assert set(complete) <= {0, 1}, kill_at
        assert 0 in complete or 1 in scene.versions.full(), "the served version is lost"
        if 1 in complete:
            scene.tensors = at_1
            scene.pull(1, "another host")
        state = scene.open(first=2).state
        assert state.version in {0, 1}, (kill_at, state)
        scene.tensors = at_1 if state.version == 1 else at_0
        scene.publish(2)
        scene.pull(2)

    each_death(tmp_path, keep, act, check)


def test_a_host_may_die_at_every_line_of_a_pull(tmp_path: Path) -> None:
    """Its copy afterwards is one that it can name, or one that it makes anew; never a mixture."""
    after: dict[str, Any] = {}

    def publish(scene: Scene) -> None:
        if scene.writer is None and scene.versions.complete() == [0]:
            scene.open(1)
            scene.publish(1)
            after["tensors"] = scene.tensors

    def act(scene: Scene) -> None:
        scene.pull(1)

    def check(scene: Scene, kill_at: int) -> None:
        state = scene.copy().state()
        assert state is None or state.version in {0, 1}, kill_at
        scene.pull(1)

    scene = begin(tmp_path / "count", 100)
    publish(scene)
    total = lines_of(lambda: act(scene), 0)
    scene.close()
    for kill_at in range(1, total + 1, -(-total // STEPS_MAX)):
        root = tmp_path / "scene"
        scene = begin(root, 100)
        publish(scene)
        die(lambda at=scene: act(at), kill_at)  # type: ignore[misc]
        check(scene, kill_at)
        scene.close()
        shutil.rmtree(root)
