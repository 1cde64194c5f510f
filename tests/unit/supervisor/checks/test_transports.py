"""What is refused of the way from the trainer to the engines, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.supervisor.checks.test_reading import GRPO, MACHINE, problems, topology

from milepost.actors.weights.transports import offers_handles
from milepost.supervisor.checks import Subject
from milepost.supervisor.checks.transports import delta_folders_can_be_written

ALWAYS = "actors.publisher.cuda_ipc=always"
WHERE = "$.actors.publisher.cuda_ipc"


def on(trainer: str, engine: str) -> list[str]:
    return [f"actors.trainer.device={trainer}", f"actors.engine.device={engine}"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([ALWAYS], "the trainer on cpu and an engine on cpu share no GPU"),
        ([ALWAYS, *on("cuda:0", "cpu")], "the trainer on cuda:0 and an engine on cpu"),
        ([ALWAYS, *on("cuda:0", "cuda:1")], "the trainer on cuda:0 and an engine on cuda:1"),
        ([ALWAYS, *on("cuda", "cuda:1")], "the trainer on cuda and an engine on cuda:1"),
        (
            [ALWAYS, *on("cuda:0", "cuda:0"), "actors.engine.kind=sglang"],
            'engines of kind "sglang" open no handles',
        ),
        (
            ["actors.publisher.transport=disk-delta", ALWAYS],
            'it is read with transport "direct", it is "disk-delta"',
        ),
        (
            ["actors.publisher.transport=disk-delta", "actors.publisher.cuda_ipc=never"],
            'it is read with transport "direct", it is "disk-delta"',
        ),
    ],
    ids=str,
)
def test_handles_that_are_wanted_where_there_can_be_none_are_refused(
    overrides: list[str], told: str
) -> None:
    """The run would end at its first version, minutes later."""
    (found,) = [each for each in problems(GRPO, *overrides) if each.where == WHERE]
    assert told in found.what
    assert found.remedy


@pytest.mark.parametrize(
    ("overrides", "offered"),
    [
        ([], False),
        (on("cuda", "cpu"), False),
        (on("cuda:0", "cuda:1"), False),
        (on("cuda", "cuda"), True),
        (on("cuda", "cuda:0"), True),
        (on("cuda:1", "cuda:1"), True),
        ([*on("cuda", "cuda"), "actors.engine.replicas=3"], True),
        ([*on("cuda", "cuda"), ALWAYS], True),
        ([*on("cuda", "cuda"), "actors.publisher.cuda_ipc=never"], False),
        ([*on("cuda", "cuda"), "actors.engine.kind=sglang"], False),
        ([*on("cuda", "cuda"), "actors.publisher.transport=disk-delta"], False),
        (
            [*on("cuda", "cpu"), "actors.evaluation_engine.device=cuda"],
            True,
        ),
    ],
    ids=str,
)
def test_versions_are_exported_on_the_gpu_where_an_engine_may_copy_them(
    overrides: list[str], *, offered: bool
) -> None:
    """A GPU's memory for versions that nobody can read would be lost for nothing."""
    assert problems(GRPO, *overrides) == []
    assert offers_handles(topology(GRPO, *overrides).actors) is offered


def test_a_folder_of_versions_that_cannot_be_is_told(tmp_path: Path) -> None:
    """The publisher makes it with its first version, when all else has started."""
    (tmp_path / "file").touch()
    delta, table = "actors.publisher.delta", "$.actors.publisher.delta"

    def told(name: str, folder: Path, transport: str = "disk-delta") -> list[str]:
        given = (f"actors.publisher.transport={transport}", f"{delta}.{name}={folder}")
        checked = Subject(topology(GRPO, *given), MACHINE)
        return [str(each) for each in delta_folders_can_be_written(checked)]

    for name in ("folder", "local_folder"):
        assert told(name, tmp_path / "new" / "deep") == []
        (problem,) = told(name, tmp_path / "file" / "deep")
        wanted = "is a file, and versions need a folder"
        assert problem.startswith(f"{tmp_path / 'file'} {wanted} at {table}.{name}")
        (problem,) = told(name, tmp_path / ("x" * 300))
        assert "cannot be looked at: File name too long" in problem
    assert told("folder", tmp_path / "file", "direct") == [], "nobody reads it then"
