"""The backend beside a server that fails: what is one request's fault, and what ends the actor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contract.kit import MIXTURE, Served, config_json, make_backend, random_row
from unit.sglang.fake_server import FakeServer

from milepost.actors.engine.embedded.shape import UnsupportedModelError
from milepost.actors.engine.interface import Finished, Rejected
from milepost.actors.engine.sglang.backend import SGLangBackend
from milepost.actors.engine.sglang.capabilities import UnsupportedServerError
from milepost.actors.engine.sglang.client import ServerGoneError
from milepost.actors.engine.sglang.health import load_of
from milepost.actors.engine.sglang.updates import Push, UpdateError
from milepost.configs.actors import EngineConfig
from milepost.configs.sglang import SGLangConfig
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason


class Scene:
    """A fake server, and engines attached to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.json").write_text(json.dumps(config_json()))
        self.server = FakeServer("0.5.21")
        self.made: list[Served] = []

    async def serve(
        self, version: str = "0.5.21", *, needs: dict[str, Any] | None = None, **changes: Any
    ) -> Served:
        self.server.version = version
        await self.server.start()
        config = EngineConfig(
            kind="sglang", sglang=SGLangConfig(urls=(self.server.url,), **changes)
        )
        backend = await asyncio.to_thread(
            make_backend, self.folder, config, self.folder, **(needs or {})
        )
        assert isinstance(backend, SGLangBackend)
        served = Served("sglang", backend, config_json(), self.folder)
        self.made.append(served)
        await served.publish()
        return served


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for served in made.made:
        served.backend.close()
    await made.server.stop()


async def failure(served: Served) -> str:
    """Wait until the backend has posted that it cannot go on."""
    async with asyncio.timeout(20):
        while not served.failure:
            served._arrived.clear()
            await served._arrived.wait()
    return served.failure


async def test_a_request_that_the_server_refuses_is_refused_alone(scene: Scene) -> None:
    served = await scene.serve()
    refused = await served.outcome(served.ask(random_row(1, 4), top_k=13))
    assert refused == Rejected(refused.key, "no such top_k")
    assert len((await served.reply(random_row(1, 4))).token_ids) == 16
    assert not served.failure


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
async def test_without_retraction_a_reply_is_split_at_the_publication(
    scene: Scene, version: str
) -> None:
    """What was sampled is kept under its version; the rest is asked for with a longer prompt."""
    served = await scene.serve(version)
    scene.server.held = True
    keys = [served.ask(random_row(n, 4), tokens_max=16) for n in range(3)]
    await scene.server.holds(3)
    scene.server.held = False
    switched = await served.publish()
    assert switched.num_in_flight == 3
    for key in keys:
        reply = await served.outcome(key)
        assert isinstance(reply, Finished)
        assert reply.finish_reason is FinishReason.LENGTH
        spans = [(span.start, span.end, span.version) for span in reply.spans]
        assert spans == [(0, 2, 0), (2, 16, 1)]
    longer = scene.server.bodies[-1]
    assert len(longer["input_ids"]) == 6
    assert longer["sampling_params"]["max_new_tokens"] == 14
    assert "/pause_generation" not in scene.server.asked
    before, after = scene.server.bodies[-4]["extra_key"], longer["extra_key"]
    assert before != after, "prefixes of the old version would answer the new one's requests"


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_with_it_requests_stay_in_the_server(scene: Scene, mode: PauseMode) -> None:
    served = await scene.serve()
    scene.server.held = True
    key = served.ask(random_row(1, 4))
    await scene.server.holds(1)
    scene.server.asked.clear()
    await served.publish(mode)
    scene.server.held = False
    doors = [door for door in scene.server.asked if door not in {"/v1/loads", "/server_info"}]
    assert doors == [
        "/pause_generation",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/end_weight_update",
        "/continue_generation",
    ]
    scene.server.free()
    assert isinstance(await served.outcome(key), Finished)


async def test_a_request_that_weights_in_place_overtook_is_asked_for_once_more(
    scene: Scene,
) -> None:
    """HTTP keeps no order between connections: it is sent under one version and begins under the
    next, over prefixes of the one before. Nothing in its tokens would tell."""
    served = await scene.serve()
    scene.server.slow["/generate"] = late = asyncio.Event()
    key = served.ask(random_row(1, 4))
    await scene.server.is_asked("/generate")
    await served.publish(PauseMode.IN_PLACE)
    late.set()
    reply = await served.outcome(key)
    assert isinstance(reply, Finished)
    assert [span.version for span in reply.spans] == [1]
    assert reply.kv_versions == (1,)
    first, second = scene.server.bodies
    assert first["extra_key"] != second["extra_key"], "the prefixes of the version before"


async def test_a_request_that_a_version_which_came_back_overtook_is_asked_for_once_more(
    scene: Scene,
) -> None:
    """A publication that fails elsewhere is taken back here: the next version has a smaller number,
    and the prefixes are those of the greater one."""
    served = await scene.serve()
    await served.publish(PauseMode.IN_PLACE)
    scene.server.slow["/generate"] = late = asyncio.Event()
    key = served.ask(random_row(1, 4))
    await scene.server.is_asked("/generate")
    await served.publish(PauseMode.IN_PLACE, version=0)
    late.set()
    reply = await served.outcome(key)
    assert isinstance(reply, Finished)
    assert [span.version for span in reply.spans] == [0]
    first, second = scene.server.bodies
    assert first["extra_key"] != second["extra_key"], "the prefixes of the version before"


async def test_nobody_passes_the_gate_that_closed_while_the_memory_came_back(scene: Scene) -> None:
    """A publication and a request wake a server at the same time; the publication was first."""
    served = await scene.serve(release_memory=True)
    assert isinstance(served.backend, SGLangBackend)
    room = served.backend._switching.room
    assert room._idle is not None
    await room._idle
    scene.server.slow["/resume_memory_occupation"] = memory = asyncio.Event()
    publishing = asyncio.create_task(served.publish())
    await scene.server.is_asked("/resume_memory_occupation")
    key = served.ask(random_row(1, 4))
    await asyncio.sleep(0)
    memory.set()
    await publishing
    assert isinstance(await served.outcome(key), Finished)
    (body,) = scene.server.bodies
    assert body["extra_key"].endswith("/2"), "asked with prefixes of the version before"
    asked = scene.server.asked
    assert asked.index("/continue_generation", asked.index("/pause_generation")) < asked.index(
        "/generate"
    )


async def test_an_aborted_request_at_the_gate_ends_without_being_asked(scene: Scene) -> None:
    """It would otherwise be sampled for nobody after the publication."""
    served = await scene.serve()
    key = served.ask(random_row(1, 4))
    served.abort(key)
    reply = await served.outcome(key)
    assert isinstance(reply, Finished)
    assert reply.finish_reason is FinishReason.ABORT
    assert scene.server.bodies == []


async def test_a_server_that_fails_in_the_middle_of_an_update_ends_the_actor(scene: Scene) -> None:
    """Half of a version may serve by now: nobody may be answered by it."""
    served = await scene.serve()
    scene.server.broken.add("/update_weights_from_tensor")
    with pytest.raises(Exception, match="update_weights_from_tensor is broken"):
        await served.publish()
    assert "version 1 did not reach the server whole" in await failure(served)


class BrokenBroadcast:
    """A way for weights that fails, e.g. in its collectives, as torch words it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def prepare(self, tensors: list[Any]) -> None:
        del tensors

    async def push(self, push: Push) -> None:
        del push
        raise self._error

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("a peer left"), "weights failed on their way: a peer left"),
        (OSError("no space is left"), "weights failed on their way: no space is left"),
        (UpdateError("/update: no such tensor"), "update answered 400: /update: no such tensor"),
        (AssertionError("broadcast before joining"), "broadcast before joining"),
        (ValueError("no such shape"), "no such shape"),
    ],
)
async def test_weights_that_fail_on_their_way_end_the_actor_and_leave_nobody_at_the_gate(
    scene: Scene, error: Exception, told: str
) -> None:
    """The gate is closed and the server pauses: requests would wait for ever, and health is not
    judged meanwhile."""
    served = await scene.serve()
    assert isinstance(served.backend, SGLangBackend)
    served.backend._switching._update = BrokenBroadcast(error)
    with pytest.raises(Exception, match=f"^{told}$"):
        await served.publish()
    assert f"version 1 did not reach the server whole: {told}" in await failure(served)


async def test_what_is_staged_and_cannot_be_let_go_leaves_the_new_version_serving(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate is open by then: a refusal would say that the old version serves."""
    served = await scene.serve()
    assert isinstance(served.backend, SGLangBackend)
    staging = served.backend._switching._staging

    def fails() -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "drop", fails)
        switched = await served.publish()
    assert switched.kept == "RuntimeError: the device is lost"
    assert served.backend.statistics()["version"] == 1
    assert len((await served.reply(random_row(1, 4))).token_ids) == 16
    assert (await served.publish()).kept == ""
    assert not served.failure


async def test_an_answer_that_breaks_off_in_an_update_ends_the_actor(scene: Scene) -> None:
    served = await scene.serve()
    scene.server.garbled.add("/pause_generation")
    with pytest.raises(ServerGoneError, match="/pause_generation: JSONDecodeError"):
        await served.publish()
    assert "version 1 did not reach the server whole" in await failure(served)


async def test_a_server_that_is_gone_ends_the_actor(scene: Scene) -> None:
    served = await scene.serve()
    await scene.server.stop()
    served.ask(random_row(1, 4))
    assert "/generate" in await failure(served)


async def test_a_silent_scheduler_ends_the_actor_though_its_front_answers(scene: Scene) -> None:
    served = await scene.serve(silence_s=0.3)
    scene.server.silent.add("/server_info")
    assert "the server's scheduler is silent" in await failure(served)


def test_the_heartbeat_has_the_room_of_all_ranks() -> None:
    rank = {"num_running_reqs": 1, "num_used_tokens": 10, "max_total_num_tokens": 50}
    told = load_of([rank, rank])
    assert told["running"] == 2
    assert told["cache_tokens_max"] == 100
    assert told["cache_tokens_free"] == 80


async def test_a_server_of_another_kind_is_refused_with_every_difference(scene: Scene) -> None:
    (scene.folder / "config.json").write_text(json.dumps(config_json(**MIXTURE)))
    with pytest.raises(
        UnsupportedServerError,
        match=r"enable_deterministic_inference = False, True .*; enable_return_routed_experts",
    ):
        await scene.serve(deterministic=True, needs={"routes": True})


async def test_routes_of_a_dense_model_are_refused_before_a_server_is_asked(scene: Scene) -> None:
    with pytest.raises(UnsupportedModelError, match=r"algorithm\.replay_routes = false"):
        await scene.serve(needs={"routes": True})
