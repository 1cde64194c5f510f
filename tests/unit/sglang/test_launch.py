"""What a server is told at its start, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.actors.engine.sglang.launch import Place, server_options
from milepost.configs.actors import EngineConfig
from milepost.configs.sglang import SGLangConfig

FRACTION, TOKENS = "mem-fraction-static", "max-total-tokens"


def options(device: str, **given: Any) -> dict[str, Any]:
    place = Place(
        name="engine-0", index=0, run_folder=Path("/run"), seed=1, token="t", deadline_s=9
    )
    config = EngineConfig(device=device, slots=4, sglang=SGLangConfig(options=given))
    return server_options(config, place, dtype="float32", context_tokens=100)


def test_a_small_machine_without_a_gpu_has_room_for_the_cache() -> None:
    """The server would keep back what graphs need on a GPU: more than 24 GB have, and it ends."""
    told = options("cpu")
    assert told[TOKENS] == 400
    assert 0.0 < told[FRACTION] < 1.0
    assert FRACTION not in options("cuda:0"), "a GPU is the server's own, and it knows it better"


@pytest.mark.parametrize(("name", "value"), [(FRACTION, 0.5), (TOKENS, 7)])
def test_what_a_user_says_of_memory_is_said(name: str, value: float) -> None:
    told = options("cpu", **{name: value})
    assert told[name] == value
    assert (TOKENS in told) == (name == TOKENS), "a fraction alone decides"
