"""The decoding thread beside a live event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.engine.kit import (
    digest_of,
    manifest,
    random_row,
    random_weights,
    tiny_config,
    tiny_shape,
)

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Event, WorkDone
from milepost.actors.engine.embedded.backend import EmbeddedBackend
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    DropEpoch,
    EpochError,
    Finished,
    GenerateOrder,
    OpenEpoch,
    Outcome,
    Rejected,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.actors.engine.receiving import Receiver
from milepost.configs.actors import EngineConfig
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason, SamplingParams


class Served:
    """A started backend, and what it posted."""

    def __init__(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(tiny_config()))
        config = EngineConfig(slots=8, running_max=8, prefill_tokens_max=64)
        receiver = Receiver(folder / "local", baseline=folder, device="cpu")
        self.backend = EmbeddedBackend(
            folder, config, dtype="float32", context_tokens=256, receiver=receiver
        )
        self.outcomes: dict[str, Outcome] = {}
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self.failure = ""
        self.backend.start(self._post)

    def _post(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        assert isinstance(event, WorkDone)
        assert event.key == OUTCOMES
        self.failure = event.error
        for outcome in event.result if isinstance(event.result, tuple) else ():
            self.outcomes[outcome.key] = outcome
        self._arrived.set()

    async def until(self, *keys: str) -> None:
        """Wait until all of these have ended."""
        async with asyncio.timeout(20):
            while not self.failure and not self.outcomes.keys() >= set(keys):
                self._arrived.clear()
                await self._arrived.wait()

    async def stage(self, seed: int) -> str:
        """Bring random weights in; returns their digest."""
        weights = random_weights(tiny_shape(), seed)
        await self.backend.perform(OpenEpoch("open", seed, manifest(tiny_shape())))
        for name, values in weights.items():
            await self.backend.perform(StageBucket(name, (name,), (to_bulk(values),)))
        return digest_of(weights)

    async def publish(self, version: int, mode: PauseMode = PauseMode.RETRACT) -> Switched:
        digest = await self.stage(version)
        switched = await self.backend.perform(SwitchWeights("switch", version, mode, digest))
        assert isinstance(switched, Switched)
        return switched


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    before = set(threading.enumerate())
    made = Served(tmp_path)
    yield made
    made.backend.close()
    ours = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in ours if name.startswith(("decode", "stage"))]


def generate(key: str, tokens_max: int, **sampling: Any) -> GenerateOrder:
    params = SamplingParams(tokens_max=tokens_max, **sampling)
    return GenerateOrder(key, key, random_row(len(key), 6), params)


async def test_orders_wake_the_thread_and_outcomes_reach_the_loop(served: Served) -> None:
    """From the event loop and back to it, with nobody polling."""
    await served.publish(0)
    for n in range(20):
        served.backend.order(generate(f"r{n}", 5, seed=n))
    await served.until(*(f"r{n}" for n in range(20)))
    assert all(isinstance(outcome, Finished) for outcome in served.outcomes.values())
    assert served.backend.statistics()["generated_tokens"] == 100


async def test_replies_live_through_publications_under_load(served: Served) -> None:
    """Weights change again and again while replies are sampled; every token has its version."""
    await served.publish(0)
    modes = list(PauseMode)
    for n in range(8):
        served.backend.order(generate(f"r{n}", 200, seed=n))
    for version in range(1, 5):
        await served.publish(version, modes[version % 2])
    await served.until(*(f"r{n}" for n in range(8)))
    for outcome in served.outcomes.values():
        assert isinstance(outcome, Finished)
        assert [span.start for span in outcome.spans] == [
            0,
            *(span.end for span in outcome.spans[:-1]),
        ]
        assert outcome.spans[-1].end == len(outcome.token_ids) == 200
        versions = [span.version for span in outcome.spans]
        assert versions == sorted(set(versions))


async def test_a_wrong_digest_leaves_the_old_version_serving(served: Served) -> None:
    """The error reaches who asked for the switch; generation does not notice."""
    await served.publish(0)
    await served.stage(1)
    with pytest.raises(EpochError, match="the epoch says wrong"):
        await served.backend.perform(SwitchWeights("s", 1, PauseMode.RETRACT, "wrong"))
    await served.backend.perform(DropEpoch("drop"))
    served.backend.order(generate("r", 3))
    await served.until("r")
    reply = served.outcomes["r"]
    assert isinstance(reply, Finished)
    assert [span.version for span in reply.spans] == [0]


async def test_an_abort_reaches_a_reply_that_is_being_sampled(served: Served) -> None:
    """It ends between two steps, whatever is left of it."""
    await served.publish(0)
    served.backend.order(generate("long", 249))
    served.backend.order(AbortOrder("abort", ("long",)))
    served.backend.order(generate("bad", 3, seed=1))
    await served.until("long", "bad")
    reply = served.outcomes["long"]
    assert isinstance(reply, Finished)
    assert reply.finish_reason is FinishReason.ABORT


async def test_a_row_outside_the_vocabulary_is_rejected_and_others_go_on(served: Served) -> None:
    """One bad request must not end the thread that serves everybody."""
    await served.publish(0)
    row = np.array([1, 10_000], np.int32)
    served.backend.order(GenerateOrder("bad", "", row, SamplingParams()))
    served.backend.order(generate("good", 3))
    await served.until("bad", "good")
    assert isinstance(served.outcomes["bad"], Rejected)
    assert isinstance(served.outcomes["good"], Finished)


async def test_a_failure_of_the_thread_is_posted(served: Served) -> None:
    """An exception in the decoding thread ends the actor with its text, it does not hang it."""
    await served.publish(0)
    served.backend._engine.staging.serving = None
    served.backend.order(generate("r", 3))
    await served.until("r")
    assert served.failure == "AssertionError: a step before the first version"


async def test_work_of_another_kind_is_refused(served: Served) -> None:
    """A work nobody carries out would leave its asker waiting."""
    with pytest.raises(TypeError, match="cannot carry out AbortOrder"):
        await served.backend.perform(AbortOrder("x"))
