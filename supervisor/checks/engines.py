"""Checks of engines that are servers of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from milepost.actors.engine.sglang.adapters import adapter_faults
from milepost.actors.engine.sglang.launch import python_of, variables
from milepost.actors.weights.manifest import read_checkpoint
from milepost.configs.actors import EngineConfig
from milepost.configs.problem import Problem
from milepost.configs.read import home_of
from milepost.configs.sglang import (
    ADAPTER_NAME,
    SGLangConfig,
    num_copies,
    num_gpus,
    num_stages,
    option_faults,
)
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Note, Subject

ASKED_S: Final = 30.0
"""For an interpreter to say what it has."""
THIS_HOST: Final = {"127.0.0.1", "localhost", "::1"}


def _servers(topology: Topology) -> Iterator[tuple[str, EngineConfig]]:
    """Each table of engines that are servers, and where its part for servers stands."""
    for where, fleet in _fleets(topology):
        if fleet.kind == "sglang":
            yield where, fleet


def _fleets(topology: Topology) -> Iterator[tuple[str, EngineConfig]]:
    actors = topology.actors
    if actors.engine is not None:
        yield "$.actors.engine.sglang", actors.engine
    if actors.evaluation_engine is not None:
        yield "$.actors.evaluation_engine.sglang", actors.evaluation_engine


def servers_are_told_once(subject: Subject) -> Iterator[Finding]:
    """A server that is started with two wills, or settings that nobody reads."""
    topology = subject.topology
    for where, fleet in _fleets(topology):
        if fleet.kind != "sglang" and fleet.sglang != SGLangConfig():
            yield Problem(f'kind = "{fleet.kind}" reads none of it', where, 'set kind = "sglang"')
    for where, engine in _servers(topology):
        for name, reason in option_faults(engine.sglang.options).items():
            what = f"option {name} is not given through here"
            yield Problem(what, f"{where}.options", reason)
        yield from _urls(engine, where)
        yield from _devices(engine, where)
        yield from _ranks(engine, where)
        if "speculative-algorithm" in engine.sglang.options:
            text = (
                "log-probs of greedy replies with drafts were compared with the model's, those of "
                "sampled ones were not: watch train/train_rollout_logprob_abs_diff"
            )
            yield Note(text, f"{where}.options.speculative-algorithm")


def _urls(engine: EngineConfig, where: str) -> Iterator[Finding]:
    ours = engine.sglang
    if not ours.urls:
        return
    if len(ours.urls) != engine.replicas:
        what = f"{len(ours.urls)} servers for {engine.replicas} engines"
        yield Problem(what, f"{where}.urls", f"name {engine.replicas}, or set replicas")
    for url in ours.urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in THIS_HOST or parts.port is None:
            what = f'"{url}" is not a server of this host, and weights do not leave it'
            yield Problem(what, f"{where}.urls", "write http://127.0.0.1:PORT")
    for name, value in (
        ("python", ours.python),
        ("options", ours.options),
        ("environment", ours.environment),
    ):
        if value:
            what = "servers that run already were started by somebody else"
            yield Problem(what, f"{where}.{name}", "leave it out, or leave urls out")


def _devices(engine: EngineConfig, table: str) -> Iterator[Finding]:
    ours, where = engine.sglang, f"{table}.staging_device"
    if ours.update == "distributed" and engine.device != "cpu":
        if ours.staging_device in {"", "cpu", engine.device}:
            what = "NCCL joins no two ranks on one GPU, so the next version needs another than ours"
            yield Problem(what, where, "name a GPU that no engine has")
    elif ours.staging_device and ours.update == "disk":
        yield Problem("weights that go over the disk are gathered nowhere else", where, "leave out")


def _ranks(engine: EngineConfig, where: str) -> Iterator[Finding]:
    """What the options say of processes; a server that runs already says it itself."""
    ours = engine.sglang
    gpus, copies = num_gpus(ours.options), num_copies(ours.options)
    if copies > 1 and ours.update != "disk":
        what = f'update = "{ours.update}" reaches one copy of the model, dp-size makes {copies}'
        yield Problem(what, f"{where}.update", 'set "disk", or the option enable-dp-attention')
    if num_stages(ours.options) > 1 and ours.update == "disk":
        what = "with pp-size SGLang serves other weights than it reads from the disk"
        yield Problem(what, f"{where}.update", 'set "tensors", or leave pp-size out')
    # All of them on the same GPUs is a will of its own; overlapping by a part of them is not.
    if engine.device != "cpu" and engine.replicas > 1 and 0 < ours.gpu_stride < gpus:
        what = f"a server takes {gpus} GPUs, the next one begins {ours.gpu_stride} further"
        yield Problem(what, f"{where}.gpu_stride", f"set {gpus}, or 0 to share them all")


def adapters_are_used(subject: Subject) -> Iterator[Finding]:
    """Adapters that no session could name: those that are trained sample from the policy alone."""
    topology = subject.topology
    actors = topology.actors
    for where, fleet in _servers(topology):
        place, adapters = f"{where}.adapters", fleet.sglang.adapters
        if not adapters:
            continue
        for name in adapters:
            if not ADAPTER_NAME.fullmatch(name):
                remedy = "use letters, digits, dots, dashes and underscores"
                yield Problem(f'"{name}" is no name of an adapter', place, remedy)
            if topology.model is not None and name == topology.model.folder.name:
                what = f'"{name}" is what clients call the policy'
                yield Problem(what, place, "give the adapter another name")
        options = fleet.sglang.options
        if fleet.device == "cpu" and num_gpus(options) > num_copies(options):
            what = "on a CPU, SGLang serves adapters of models in one part"
            yield Problem(what, place, "leave out tp-size and pp-size, or the adapters")
        if fleet is actors.engine and actors.evaluation_engine is not None:
            remedy = "move them to actors.evaluation_engine.sglang"
            yield Problem("sessions that nobody trains have engines of their own", place, remedy)
        http = actors.session.http if actors.session is not None else None
        evaluates = actors.evaluator is not None and not actors.evaluator.external
        if not evaluates and not (http is not None and http.free_sessions):
            what = "every session of this run is trained, so none may name an adapter"
            remedy = "leave them out, add [actors.evaluator], or set http.free_sessions"
            yield Problem(what, place, remedy)


def adapters_fit(subject: Subject) -> Iterator[Finding]:
    """Minutes of waiting for a server that cannot load an adapter, or loads one of another model.

    A model that is made before the run has no shapes yet: then each engine compares at its start.
    """
    model = subject.topology.model
    shapes = None
    if model is not None and model.path:
        try:
            places = read_checkpoint(model.folder)
        except (OSError, ValueError):
            return  # another check names what is wrong with it
        shapes = {name: place.spec.shape for name, place in places.items()}
    for where, fleet in _servers(subject.topology):
        for name, folder in fleet.sglang.adapters.items():
            for fault in adapter_faults(Path(home_of(folder)), shapes):
                remedy = "give the folder of an adapter of this model, as PEFT writes it"
                yield Problem(fault, f"{where}.adapters.{name}", remedy)


def servers_can_start(subject: Subject) -> Iterator[Finding]:
    """Minutes of waiting for a server whose interpreter does not exist, or has no SGLang."""
    for where, engine in _servers(subject.topology):
        python = engine.sglang.python
        if engine.sglang.urls:
            continue  # somebody else started them
        if python and shutil.which(python) is None:
            remedy = "name the interpreter of an environment with SGLang"
            yield Problem(f'"{python}" is no program', f"{where}.python", remedy)
        elif not _has_sglang(engine):
            what = f'"{python}" has no package sglang' if python else "sglang is not installed here"
            remedy = "name the interpreter of an environment that has it"
            yield Problem(what, f"{where}.python", remedy)


def _has_sglang(engine: EngineConfig) -> bool:
    """Whether its server would find it, begun as it will be; looked for, not imported."""
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('sglang') is None)"
    words = ["env", *variables(engine), python_of(engine), "-P", "-c", program]
    try:
        asked = subprocess.run(words, capture_output=True, timeout=ASKED_S, check=False)
    except OSError:
        return False
    except subprocess.TimeoutExpired:
        return True  # a slow disk; the engine says what becomes of it
    return asked.returncode == 0
