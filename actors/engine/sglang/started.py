"""A server that runs, and everything that was found out about it."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import (
    ModelShape,
    UnsupportedModelError,
    read_shape,
)
from milepost.actors.engine.interface import EngineFacts
from milepost.actors.engine.sglang.adapters import require_fitting
from milepost.actors.engine.sglang.broadcast import BroadcastUpdate
from milepost.actors.engine.sglang.capabilities import (
    Capabilities,
    UnsupportedServerError,
    capabilities_of,
    require,
)
from milepost.actors.engine.sglang.launch import (
    CONTEXT_MARGIN,
    Place,
    Server,
    server_options,
    start_server,
)
from milepost.actors.engine.sglang.ranks import Parallel, parallel_of, require_adapters, require_way
from milepost.actors.engine.sglang.updates import DiskUpdate, Session, TensorUpdate, Update
from milepost.configs.actors import EngineConfig
from milepost.configs.read import home_of
from milepost.configs.sglang import SGLangConfig
from milepost.messages.engine import TensorSpec

ASK_S = 60.0
EXACT_DRAFTS = ("speculative_accept_threshold_acc", "speculative_accept_threshold_single")
"""Below 1 a server takes drafts that the model would not have drawn."""


@dataclass(frozen=True, slots=True)
class Started:
    """See the module.

    Attributes:
        url: of the server.
        server: None when it is somebody else's.
        capabilities: of its release.
        config: `[actors.engine.sglang]`.
        facts: for the core.
        shape: of the model.
        token: names our requests and prefixes.
        parallel: how the server spreads over its processes.
        staging_device: where the next version is gathered.
        model: folder with the model's configuration.
        scratch: folder for versions on disk.
    """

    url: str
    server: Server | None
    capabilities: Capabilities
    config: SGLangConfig
    facts: EngineFacts
    shape: ModelShape
    token: str
    parallel: Parallel
    staging_device: torch.device
    model: Path
    scratch: Path


@dataclass(frozen=True, slots=True)
class Needs:
    """What the topology wants of an engine beside `[actors.engine]`.

    Attributes:
        dtype: of the weights.
        context_tokens: most tokens of one row.
        pause: `[actors.publisher] pause`; empty without one.
        is_cut: `[sampling]` has top-p, top-k or min-p.
        routes: `[algorithm] replay_routes`.
    """

    dtype: str
    context_tokens: int
    pause: str
    is_cut: bool
    routes: bool = False


def start(folder: Path, config: EngineConfig, place: Place, needs: Needs) -> Started:
    """Start a server, or find the one that is named; blocks until it serves.

    Raises:
        AdapterError: an adapter does not fit the model.
        ServerStartError: ours did not become ready.
        UnsupportedModelError: an architecture whose tensors Milepost cannot name, or one without
            experts whose routes are wanted.
        UnsupportedServerError: the release, or the way it was started, cannot do what is needed.
    """
    ours = config.sglang
    shape = read_shape(folder)
    if needs.routes and shape.routes is None:
        raise UnsupportedModelError(
            f"{folder} has no mixture of experts, so it has no routes: set "
            f"algorithm.replay_routes = false"
        )
    manifest = Parameters(shape, getattr(torch, needs.dtype), torch.device("meta")).manifest
    require_fitting(ours.adapters, {spec.name: spec.shape for spec in manifest})
    with contextlib.ExitStack() as undo:
        server = None
        if ours.urls:
            url = ours.urls[place.index].rstrip("/")
        else:
            options = server_options(
                config,
                place,
                dtype=needs.dtype,
                context_tokens=needs.context_tokens,
                routes=needs.routes,
            )
            server = start_server(folder, config, options, place)
            undo.callback(server.close)
            url = server.url
        info = server_info(url)
        capabilities = capabilities_of(str(info["version"]))
        require(capabilities, pause=needs.pause, is_cut=needs.is_cut)
        parallel = parallel_of(info)
        require_way(ours.update, parallel)
        if ours.adapters:
            require_adapters(parallel, config.device)
        if server is None:
            refuse_unfit(info, config, needs)
        elif needs.routes and not info.get("enable_return_routed_experts"):
            raise UnsupportedServerError(
                f"SGLang {capabilities.version} keeps no routes, algorithm.replay_routes needs them"
            )
        undo.pop_all()
    return Started(
        url=url,
        server=server,
        capabilities=capabilities,
        config=ours,
        facts=_facts(config, needs, shape, manifest, info, url),
        shape=shape,
        token=place.token,
        parallel=parallel,
        staging_device=torch.device(ours.staging_device or _first_device(config, place)),
        model=folder,
        scratch=place.run_folder / "engines" / place.name / "weights",
    )


def _facts(
    config: EngineConfig,
    needs: Needs,
    shape: ModelShape,
    manifest: tuple[TensorSpec, ...],
    info: dict[str, Any],
    url: str,
) -> EngineFacts:
    version, parallel = str(info["version"]), parallel_of(info)
    return EngineFacts(
        manifest=manifest,
        vocab_size=shape.vocab_size,
        context_tokens=needs.context_tokens,
        returns_routes=needs.routes,
        adapters=tuple(sorted(config.sglang.adapters)),
        details={
            "model_type": shape.model_type,
            "layers": shape.num_layers,
            "dtype": needs.dtype,
            "device": config.device,
            "tensors": len(manifest),
            "sglang": version,
            "tried": capabilities_of(version).tried,
            "url": url,
            "update": config.sglang.update,
            "ranks": parallel.ranks,
            "data_ranks": parallel.data_ranks,
            "copies": parallel.copies,
            "stages": parallel.stages,
            "cache_tokens": info.get("max_total_num_tokens"),
        },
    )


def make_update(started: Started, session: Session, stager: ThreadPoolExecutor) -> Update:
    """The way that `[actors.engine.sglang] update` names."""
    match started.config.update:
        case "tensors":
            return TensorUpdate(session, started.parallel.ranks, stager)
        case "disk":
            return DiskUpdate(session, started.model, started.scratch, stager)
        case "distributed":
            ranks, deadline_s = started.parallel.ranks, started.config.update_s
            return BroadcastUpdate(session, ranks, started.staging_device, deadline_s)


def server_info(url: str) -> dict[str, Any]:
    """What a server says of itself.

    Raises:
        UnsupportedServerError: nobody answers there.
    """
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=ASK_S) as answer:  # noqa: S310
            return dict(json.load(answer))
    except OSError as error:
        raise UnsupportedServerError(f"no SGLang server answers at {url}: {error}") from error


def refuse_unfit(info: dict[str, Any], config: EngineConfig, needs: Needs) -> None:
    """Refuse somebody else's server that was started in a way that contradicts the topology.

    Raises:
        UnsupportedServerError: with every difference.
    """
    ours = config.sglang
    wanted: dict[str, object] = {
        "dtype": needs.dtype,
        "skip_tokenizer_init": True,
        "allow_auto_truncate": False,
        "enable_deterministic_inference": ours.deterministic,
        "enable_return_routed_experts": needs.routes,
    }
    faults = [
        f"{name} = {info.get(name)!r}, {value!r} is needed"
        for name, value in wanted.items()
        if info.get(name) != value
    ]
    faults += [
        f"{name} = {info[name]!r}, 1.0 is needed"
        for name in EXACT_DRAFTS
        if info.get(name, 1.0) != 1.0
    ]
    faults += adapter_differences(ours.adapters, info.get("lora_paths"))
    length = info.get("context_length")
    if length is not None and length < needs.context_tokens + CONTEXT_MARGIN:
        faults.append(
            f"context_length = {length}, {needs.context_tokens + CONTEXT_MARGIN} is needed"
        )
    if faults:
        raise UnsupportedServerError("the server at hand has " + "; ".join(faults))


def adapter_differences(adapters: dict[str, str], loaded: object) -> list[str]:
    """What somebody else's server lacks of the adapters that the topology names."""
    entries = loaded if isinstance(loaded, list) else []
    has = {entry["lora_name"]: entry["lora_path"] for entry in entries if isinstance(entry, dict)}
    differences = []
    for name, folder in adapters.items():
        place = Path(home_of(folder)).resolve()
        if name not in has or Path(has[name]).resolve() != place:
            found = f"loaded from {has[name]}" if name in has else "absent"
            differences.append(f"adapter {name} {found}, {place} is needed")
    return differences


def _first_device(config: EngineConfig, place: Place) -> str:
    device, _, number = config.device.partition(":")
    if device == "cpu" or config.sglang.urls:
        return config.device
    return f"{device}:{int(number or 0) + place.index * config.sglang.gpu_stride}"
