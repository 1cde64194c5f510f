"""Every way of weights into a server, by a second engine beside the one that started it.

Also what it is to be attached to a server that somebody else started.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from contract.kit import (
    DEVICE,
    MIXTURE,
    Served,
    assert_close,
    bulk_of,
    config_json,
    digest_of,
    engine_config,
    make_backend,
    random_row,
    sampled_logprobs,
    whole,
)
from safetensors.torch import save_file

from milepost.actors.engine.interface import Finished, OpenEpoch, PullWeights, SwitchWeights
from milepost.actors.engine.sglang.backend import SGLangBackend
from milepost.actors.engine.sglang.capabilities import UnsupportedServerError
from milepost.actors.weights.delta_writer import DeltaSettings, DeltaWriter
from milepost.actors.weights.encoder import Encoder
from milepost.messages.engine import PauseMode

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),
]


@pytest_asyncio.fixture(loop_scope="session")
async def url(served: Served) -> AsyncIterator[str]:
    """Of the server; its own engine brings its weights back in the end."""
    if not isinstance(served.backend, SGLangBackend):
        pytest.skip("no server")
    yield str(served.backend.facts.details["url"])
    await served.publish()


async def attached(served: Served, url: str, folder: Path, update: str) -> Served:
    config = engine_config(served.kind, urls=(url,), update=update, python="", environment={})
    backend = await asyncio.to_thread(make_backend, served.folder, config, folder)
    return Served(served.kind, backend, served.config, served.folder)


def several_copies(served: Served) -> bool:
    """Whether the disk alone reaches all of the server."""
    return bool(served.backend.facts.details["copies"] != 1)


def has_stages(served: Served) -> bool:
    """Whether the disk is the one way that is not open."""
    return bool(served.backend.facts.details["stages"] != 1)


@pytest.mark.parametrize("update", ["disk", "distributed"])
async def test_weights_arrive_by_every_way(
    served: Served, url: str, update: str, tmp_path: Path
) -> None:
    """Twice each, the second time with a reply in flight; log-probs tell whose weights serve."""
    if update == "distributed" and DEVICE != "cpu":
        pytest.skip("NCCL needs another GPU: tests/gpu/sglang.sh two")
    refusal = {
        "distributed": "one copy of the model" if several_copies(served) else "",
        "disk": "other weights than it reads" if has_stages(served) else "",
    }[update]
    if refusal:
        with pytest.raises(UnsupportedServerError, match=refusal):
            await attached(served, url, tmp_path, update)
        return
    second = await attached(served, url, tmp_path, update)
    try:
        await second.publish(seed=501)
        row = random_row(60, 12)
        busy = second.ask(row, tokens_max=200)
        await second.publish(seed=502)
        fresh = await second.reply(row, tokens_max=20)
        full = whole(row, fresh)
        assert fresh.spans[0].version == second.version
        assert_close(fresh.logprobs, sampled_logprobs(second.expected(full), full, 12))
        assert isinstance(await second.outcome(busy), Finished)
    finally:
        second.backend.close()
    assert not second.failure


@pytest.mark.parametrize("update", ["tensors", "disk"])
async def test_versions_are_pulled_as_differences(
    served: Served, url: str, update: str, tmp_path: Path
) -> None:
    """Full reload and difference alike: the host's copy is patched, the server gets all of it."""
    if update == "tensors" and several_copies(served):
        pytest.skip("refused at start: tensors reach one copy of the model")
    if update == "disk" and has_stages(served):
        pytest.skip("refused at start: what stages read from the disk is not what they serve")
    model, root = tmp_path / "model", tmp_path / "versions"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(served.config))
    config = engine_config(served.kind, urls=(url,), update=update, python="", environment={})
    manifest = tuple(sorted(served.backend.facts.manifest, key=lambda spec: spec.name))
    names = [spec.name for spec in manifest]
    weights = served.random_weights(600)
    save_file(dict(weights), model / "model.safetensors", metadata={"format": "pt"})
    settings = DeltaSettings(
        root=root, baseline=model, encoding="chunks", checksum="xxh3-128", workers=1, keep=4,
        deadline_s=60.0,
    )  # fmt: skip
    writer = DeltaWriter(settings, manifest, 1, Encoder)
    backend = await asyncio.to_thread(make_backend, model, config, tmp_path)
    second = Served(served.kind, backend, served.config, model)
    try:
        for version in (1, 2):
            moved = names[version]
            weights = {**weights, moved: weights[moved] * 1.25}
            digest = digest_of(names, weights)
            bulks = [(name, bulk_of(weights[name])) for name in names]
            await asyncio.to_thread(writer.write, version, digest, bulks)
            await backend.perform(OpenEpoch("open", version, manifest))
            await backend.perform(PullWeights("pull", version, str(root)))
            await backend.perform(SwitchWeights("switch", version, PauseMode.RETRACT, digest))
            writer.confirm(version)
            row = random_row(62, 12)
            fresh = await second.reply(row, tokens_max=20)
            full = whole(row, fresh)
            assert fresh.spans[0].version == version
            expected = second.expected(full, weights=weights)
            assert_close(fresh.logprobs, sampled_logprobs(expected, full, 12))
    finally:
        writer.close()
        backend.close()


async def test_a_server_of_somebody_elses_is_left_running(
    served: Served, url: str, tmp_path: Path
) -> None:
    """Closing the engine that is attached to it stops nothing."""
    second = await attached(served, url, tmp_path, "disk" if several_copies(served) else "tensors")
    await second.publish(seed=503)
    second.backend.close()
    await served.publish()
    assert len((await served.reply(random_row(61, 8))).token_ids) == 16


async def test_a_server_that_does_otherwise_than_the_topology_says_is_refused(
    served: Served, url: str, tmp_path: Path
) -> None:
    """Seeds that have no effect, routes that never come: found at the first batch, or never."""
    config = engine_config(served.kind, urls=(url,), python="", environment={})
    (tmp_path / "config.json").write_text(json.dumps(config_json(**MIXTURE)))
    with pytest.raises(UnsupportedServerError, match="enable_return_routed_experts = False"):
        await asyncio.to_thread(make_backend, tmp_path, config, tmp_path, routes=True)


async def test_nobody_at_the_url_is_said_by_name(served: Served, url: str, tmp_path: Path) -> None:
    assert url
    config = engine_config(served.kind, urls=("http://127.0.0.1:9",), python="", environment={})
    with pytest.raises(UnsupportedServerError, match="no SGLang server answers"):
        await asyncio.to_thread(make_backend, served.folder, config, tmp_path)


async def test_each_rank_has_a_cache_of_its_own(served: Served, url: str) -> None:
    """A conversation that moved to another rank would be computed anew at every turn."""
    assert url
    if served.backend.facts.details["data_ranks"] == 1:
        pytest.skip("one rank")
    row = random_row(63, 50)
    cached = [
        (await served.reply(row, "sticky", rank=rank, tokens_max=4)).cached_tokens
        for rank in (0, 1, 0, 1)
    ]
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) >= 48


async def test_publications_under_load_never_harm_the_server(served: Served, url: str) -> None:
    """A flush at the wrong moment kills some releases: ten publications among short replies."""
    assert url
    for number in range(10):
        keys = [served.ask(random_row(n, 5), tokens_max=1 + n * 3) for n in range(16)]
        mode = PauseMode.IN_PLACE if number % 2 and served.kind != "sglang-old" else None
        await served.publish(mode or PauseMode.RETRACT)
        for key in keys:
            assert isinstance(await served.outcome(key), Finished)
