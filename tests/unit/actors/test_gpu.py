"""Figures of GPUs, from a driver that is written down here: this machine has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from milepost.actors.gpu import GpuFigures, ordinals_of
from milepost.configs.load import decode
from milepost.configs.spec import ActorSpec


class Refused(Exception):
    """As the driver's own error."""


class Written:
    """Four devices by number, two more by name; device 3 is lost after the first read."""

    def __init__(self) -> None:
        self.asked: list[str | int] = []

    def nvmlInit(self) -> None:  # noqa: N802
        """Nothing to do."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        self.asked.append(index)
        return SimpleNamespace(used=(index + 1) << 30, gpu=10 * index, reads=0, lost=index == 3)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        self.asked.append(uuid)
        return SimpleNamespace(used=7 << 30, gpu=70, reads=0, lost=False)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        handle.reads += 1
        if handle.lost and handle.reads > 1:
            raise Refused("GPU is lost")
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        return handle


@pytest.mark.parametrize(
    ("ordinals", "visible", "asked", "figures"),
    [
        ((1, 2), None, [1, 2], (5 * 1024, 0.15)),
        ((0,), "2,1", [2], (3 * 1024, 0.2)),
        ((1,), "0,GPU-ab", ["GPU-ab"], (7 * 1024, 0.7)),
    ],
)
def test_memory_is_summed_and_work_is_a_mean_over_the_actor_s_devices(
    ordinals: tuple[int, ...], visible: str | None, asked: list[Any], figures: tuple[float, float]
) -> None:
    driver = Written()
    gpus = GpuFigures(ordinals, visible, driver)
    gpus.follow(Refused, lambda _: True)
    assert driver.asked == asked
    assert gpus.newest() == {"gpu_memory_mib": figures[0], "gpu_utilization": figures[1]}


def test_what_the_driver_refuses_is_told_and_old_figures_are_not() -> None:
    gpus = GpuFigures((3,), None, Written())
    gpus.follow(Refused, lambda _: False)
    assert gpus.newest() == {"gpu_problem": "GPU is lost"}


def spec(kind: str, index: int, **actors: Any) -> ActorSpec:
    topology = decode({"run": {"name": "tiny", "steps": 1}, "actors": actors})
    return ActorSpec(
        actor=f"{kind}-{index}",
        kind=kind,
        index=index,
        incarnation=0,
        run_id="r",
        run_folder="/r",
        addresses={},
        topology=topology,
        topology_hash="",
    )


@pytest.mark.parametrize(
    ("kind", "index", "actors", "ordinals"),
    [
        ("trainer", 3, {"trainer": {"lr": 1e-3, "device": "cuda", "ranks": 4}}, (3,)),
        ("trainer", 0, {"trainer": {"lr": 1e-3, "device": "cuda:2"}}, (2,)),
        ("trainer", 0, {"trainer": {"lr": 1e-3}}, ()),
        ("engine", 1, {"engine": {"device": "cuda:1", "replicas": 2}}, (1,)),
        ("engine", 1, {"engine": {"kind": "sglang", "device": "cuda", "replicas": 2,
          "sglang": {"gpu_stride": 2, "options": {"tp-size": 2}}}}, (2, 3)),
        ("engine", 0, {"engine": {"kind": "sglang", "device": "cuda",
          "sglang": {"urls": ["http://h:1"]}}}, ()),
        ("buffer", 0, {"buffer": {}}, ()),
    ],
)  # fmt: skip
def test_an_actor_s_devices_are_those_of_the_topology(
    kind: str, index: int, actors: dict[str, Any], ordinals: tuple[int, ...]
) -> None:
    assert ordinals_of(spec(kind, index, **actors)) == ordinals
