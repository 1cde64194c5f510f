"""A session actor over the real bus: an episode goes through, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from proc.session_process import generated, session_process, write_small_model

from milepost.actors.arrays import from_bulk
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.messages.engine import Generate
from milepost.messages.session import ChatRefused, ChatTurn
from milepost.messages.shared import Message

pytestmark = pytest.mark.timeout(60)

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"name": "kai", "field": "pet"}}\n</tool_call>'
SCRIPT = [CALL, CALL, "cat"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with tokenizer and template."""
    write_small_model(tmp_path)
    return tmp_path


def policies(pid: int) -> set[int]:
    """Scheduling policies of a process: of its main thread and of ZeroMQ's."""
    names = {
        int(task.name): (task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()
    }
    threads = [number for number, name in names.items() if "ZMQbg/IO" in name]
    assert threads, f"no thread of ZeroMQ among {names}"
    return set(map(os.sched_getscheduler, [pid, *threads]))


@pytest.mark.parametrize("render_workers", [0, 2])
async def test_episodes_at_once_go_through_a_real_session_actor(
    model: Path, render_workers: int
) -> None:
    """Rows that arrive at the buffer are what the engine was sent and what it said."""
    tokenizer = load_tokenizer(model)
    seen: dict[str, list[int]] = {}

    def engine(request: Generate) -> Message:
        prompt = from_bulk(request.token_ids).tolist()
        turn = tokenizer.decode(prompt).count("<|im_start|>assistant") - 1
        said = tokenizer.encode(SCRIPT[turn] + "<|im_end|>")
        seen[request.session_id] = prompt + said.tolist()
        return generated(request, said)

    async with session_process(model, render_workers=render_workers) as scene:
        scene.engine = engine
        names = [f"g{number}.0" for number in range(8)]
        finished = await asyncio.gather(*(scene.episode(name, SCRIPT) for name in names))
        assert scene.facts["family"] == "qwen3"
        assert policies(scene.pid) == {os.SCHED_BATCH}, "`system.cores` is for all that computes"
        refused = await scene.ask("agent-0", ChatTurn(trajectory_id="g9.0", messages=[]))
        assert isinstance(refused, ChatRefused)
        assert refused.kind == "unknown_session"
    for name, each in zip(names, finished, strict=True):
        trajectory = each.trajectory
        assert from_bulk(trajectory.token_ids).tolist() == seen[name]
        assert len(trajectory.turns) == 3
        assert trajectory.certificate.canonical_mismatch is None
