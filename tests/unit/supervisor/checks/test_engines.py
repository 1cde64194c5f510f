"""What is refused of an engine that is a server, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from unit.supervisor.checks.test_reading import GRPO, MACHINE, notes, problems, topology

from milepost.supervisor.checks import Subject
from milepost.supervisor.checks.engines import servers_can_start

SERVER = "actors.engine.kind=sglang"
TABLE = "actors.engine.sglang"


@pytest.mark.parametrize(
    ("overrides", "where", "told"),
    [
        ([f"{TABLE}.options={{port = 1}}"], "options", "option port"),
        ([f"{TABLE}.options={{tp_size = 2}}"], "options", "option tp_size"),
        ([f"{TABLE}.options={{enable-metrics = false}}"], "options", "option enable-metrics"),
        ([f"{TABLE}.urls=['http://127.0.0.1:1','http://127.0.0.1:2']"], "urls", "2 servers for 1"),
        ([f"{TABLE}.urls=['http://10.0.0.1:1']"], "urls", "not a server of this host"),
        ([f"{TABLE}.urls=['http://127.0.0.1']"], "urls", "not a server of this host"),
        ([f"{TABLE}.urls=['http://127.0.0.1:1']", f"{TABLE}.python=p"], "python", "somebody else"),
        (
            [f"{TABLE}.update=distributed", "actors.engine.device=cuda:0"],
            "staging_device",
            "no two ranks",
        ),
        ([f"{TABLE}.update=disk", f"{TABLE}.staging_device=cpu"], "staging_device", "nowhere else"),
        ([f"{TABLE}.options={{dp-size = 2}}"], "update", "one copy of the model, dp-size makes 2"),
        (
            [f"{TABLE}.options={{pp-size = 2}}", f"{TABLE}.update=disk"],
            "update",
            "other weights than it reads from the disk",
        ),
        (
            [
                f"{TABLE}.options={{tp-size = 4}}",
                "actors.engine.replicas=2",
                "actors.engine.device=cuda",
            ],
            "gpu_stride",
            "takes 4 GPUs",
        ),
        ([f"{TABLE}.adapters={{'a:b' = '/x'}}"], "adapters", "no name of an adapter"),
        ([f"{TABLE}.adapters={{tiny = '/x'}}"], "adapters", "what clients call the policy"),
        (
            [f"{TABLE}.adapters={{a = '/x'}}", "actors.evaluator.external='user:Exam'"],
            "adapters",
            "every session of this run is trained",
        ),
        (
            [f"{TABLE}.adapters={{a = '/x'}}", f"{TABLE}.options={{tp-size = 2}}"],
            "adapters",
            "of models in one part",
        ),
        ([f"{TABLE}.options={{lora-paths = ['x']}}"], "options", "option lora-paths"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_server_that_is_told_two_things_is_refused(
    overrides: list[str], where: str, told: str
) -> None:
    """Each of these would start a server that does something else than the topology says."""
    found = problems(GRPO, SERVER, *overrides)
    assert [problem.where for problem in found] == [f"$.{TABLE}.{where}"]
    assert told in found[0].what
    assert found[0].remedy


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [f"{TABLE}.options={{tp-size = 2, enable-metrics = true}}"],
        [f"{TABLE}.urls=['http://127.0.0.1:30000/']"],
        [f"{TABLE}.update=distributed"],
        [f"{TABLE}.options={{dp-size = 2}}", f"{TABLE}.update=disk"],
        [f"{TABLE}.options={{pp-size = 2}}"],
        [f"{TABLE}.options={{dp-size = 2, tp-size = 2, enable-dp-attention = true}}"],
        [f"{TABLE}.adapters={{a-b = '/x'}}"],
        [f"{TABLE}.gpu_stride=0", "actors.engine.replicas=2", "actors.engine.device=cuda"],
        [
            f"{TABLE}.update=distributed",
            "actors.engine.device=cuda:0",
            f"{TABLE}.staging_device=cuda:1",
        ],
    ],
    ids=str,
)
def test_what_a_server_may_be_told_is_left_alone(overrides: list[str]) -> None:
    assert problems(GRPO, SERVER, *overrides) == []


def test_drafts_are_spoken_of() -> None:
    """Thresholds below 1 take drafts that the model would not have drawn: those are refused."""
    drafts = f"{TABLE}.options={{speculative-algorithm = 'NGRAM'}}"
    assert problems(GRPO, SERVER, drafts) == []
    assert any("drafts" in note.text for note in notes(GRPO, SERVER, drafts))
    assert problems(GRPO, SERVER, f"{TABLE}.options={{speculative-accept-threshold-acc = 0.5}}")


def test_an_interpreter_without_sglang_is_told_before_anything_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine would wait for a server that ended at once, and tell the end of a log."""

    def told(*overrides: str) -> list[str]:
        given = ("actors.engine.kind=sglang", *overrides)
        found = servers_can_start(Subject(topology(GRPO, *given), MACHINE))
        return [str(each) for each in found]

    where = "$.actors.engine.sglang.python"
    (nowhere,) = told("actors.engine.sglang.python=no-such-python")
    assert nowhere.startswith(f'"no-such-python" is no program at {where}')
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    bare.chmod(0o700)
    (without,) = told(f"actors.engine.sglang.python={bare}")
    assert without.startswith(f'"{bare}" has no package sglang at {where}')
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert told(f"actors.engine.sglang.python={sys.executable}") == [], "looked for, not imported"
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)
    itself = f"actors.engine.sglang.python={sys.executable}"
    assert len(told(itself)) == 1, "the folder that it is started in is none of its packages"
    theirs = f"actors.engine.sglang.environment={{PYTHONPATH = '{tmp_path}'}}"
    assert told(itself, theirs) == [], "its server has this environment, too"
    monkeypatch.setattr(sys, "executable", str(bare))
    (here,) = told()
    assert here.startswith(f"sglang is not installed here at {where}")
    urls = 'actors.engine.sglang.urls=["http://127.0.0.1:1"]'
    assert told(urls) == [], "somebody else's interpreter"
