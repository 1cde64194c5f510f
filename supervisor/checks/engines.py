"""Checks of engines that are servers of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

from milepost.configs.actors import EngineConfig
from milepost.configs.problem import Problem
from milepost.configs.sglang import SGLangConfig, option_faults
from milepost.supervisor.checks.check import Finding, Subject

WHERE = "$.actors.engine.sglang"
THIS_HOST = {"127.0.0.1", "localhost", "::1"}


def servers_are_told_once(subject: Subject) -> Iterator[Finding]:
    """A server that is started with two wills, or settings that nobody reads."""
    engine = subject.topology.actors.engine
    if engine is None:
        return
    ours = engine.sglang
    if engine.kind != "sglang":
        if ours != SGLangConfig():
            yield Problem(f'kind = "{engine.kind}" reads none of it', WHERE, 'set kind = "sglang"')
        return
    for name, reason in option_faults(ours.options).items():
        what = f"option {name} is not given through here"
        yield Problem(what, f"{WHERE}.options", reason)
    yield from _urls(engine)
    yield from _devices(engine)


def _urls(engine: EngineConfig) -> Iterator[Finding]:
    ours = engine.sglang
    if not ours.urls:
        return
    if len(ours.urls) != engine.replicas:
        what = f"{len(ours.urls)} servers for {engine.replicas} engines"
        yield Problem(what, f"{WHERE}.urls", f"name {engine.replicas}, or set replicas")
    for url in ours.urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in THIS_HOST or parts.port is None:
            what = f'"{url}" is not a server of this host, and weights do not leave it'
            yield Problem(what, f"{WHERE}.urls", "write http://127.0.0.1:PORT")
    for name, value in (
        ("python", ours.python),
        ("options", ours.options),
        ("environment", ours.environment),
    ):
        if value:
            what = "servers that run already were started by somebody else"
            yield Problem(what, f"{WHERE}.{name}", "leave it out, or leave urls out")


def _devices(engine: EngineConfig) -> Iterator[Finding]:
    ours, where = engine.sglang, f"{WHERE}.staging_device"
    if ours.update == "distributed" and engine.device != "cpu":
        if ours.staging_device in {"", "cpu", engine.device}:
            what = "NCCL joins no two ranks on one GPU, so the next version needs another than ours"
            yield Problem(what, where, "name a GPU that no engine has")
    elif ours.staging_device and ours.update == "disk":
        yield Problem("weights that go over the disk are gathered nowhere else", where, "leave out")


def servers_can_start(subject: Subject) -> Iterator[Finding]:
    """Minutes of waiting for a server whose interpreter does not exist."""
    engine = subject.topology.actors.engine
    if engine is None or engine.kind != "sglang" or not engine.sglang.python:
        return
    if shutil.which(engine.sglang.python) is None:
        what = f'"{engine.sglang.python}" is no program'
        yield Problem(what, f"{WHERE}.python", "name the interpreter of an environment with SGLang")
