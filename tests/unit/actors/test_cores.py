"""How actors share the cores of a host: policies of Linux, per thread and inherited."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost.actors import cores
from milepost.configs.system import CoreSharing


@pytest.mark.parametrize("how", ["batch", "normal"])
def test_a_thread_is_scheduled_as_the_topology_says_and_so_is_what_it_starts(
    how: CoreSharing,
) -> None:
    """ZeroMQ's and torch's threads are started later, and nobody asks them."""

    def shared() -> tuple[str, int, int]:
        refused = cores.share(how)
        with ThreadPoolExecutor(1) as later:
            return (
                refused,
                os.sched_getscheduler(0),
                later.submit(os.sched_getscheduler, 0).result(),
            )

    with ThreadPoolExecutor(1) as own:
        refused, found, inherited = own.submit(shared).result()
    assert (refused, found, inherited) == ("", cores.POLICIES[how], cores.POLICIES[how])


def test_a_system_that_refuses_is_quoted_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes allow no such call; a run is slower there, not impossible."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert "system.cores = 'batch' cannot be had here" in cores.share("batch")
