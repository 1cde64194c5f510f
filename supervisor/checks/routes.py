"""Checks of routing replay: somebody must note routes, and somebody must have some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from milepost.actors.engine.embedded.shape import UnsupportedModelError, read_shape
from milepost.configs.problem import Problem
from milepost.supervisor.checks.check import Finding, Note, Subject

WHERE: Final = "$.algorithm.replay_routes"
RETURNING: Final = ("embedded", "sglang")
"""Kinds of engine that tell the experts of each token."""
REPLAYING: Final = ("fsdp",)
"""Kinds of trainer that take them."""
MEBIBYTE: Final = 1 << 20


def routes_find_their_way(subject: Subject) -> Iterator[Finding]:
    """Routes that nobody notes, or that arrive where nobody replays them."""
    topology = subject.topology
    if not topology.algorithm.replay_routes:
        return
    if topology.algorithm.estimator == "sft":
        what = 'replay_routes with estimator "sft", whose rows went through no engine'
        yield Problem(what, WHERE, "leave it out")
        return
    engine, trainer = topology.actors.engine, topology.actors.trainer
    if engine is not None and engine.kind not in RETURNING:
        what = f'replay_routes, and engines of kind "{engine.kind}" do not tell their routes'
        yield Problem(what, WHERE, f"set actors.engine.kind to one of {', '.join(RETURNING)}")
    if trainer is not None and trainer.kind not in REPLAYING:
        what = f'replay_routes, and a trainer of kind "{trainer.kind}" chooses experts by itself'
        yield Problem(what, WHERE, f"set actors.trainer.kind to one of {', '.join(REPLAYING)}")


def model_has_routes(subject: Subject) -> Iterator[Finding]:
    """Replay of the routes of a dense model, which has none: engines that end at their start."""
    topology = subject.topology
    model = topology.model
    if not topology.algorithm.replay_routes or model is None or not model.path:
        return
    try:
        shape = read_shape(model.folder)
    except (OSError, ValueError, KeyError, UnsupportedModelError):
        return  # another check names what is wrong with it
    if (routes := shape.routes) is None:
        what = f'replay_routes, and "{model.path}" ({shape.model_type}) has no mixture of experts'
        yield Problem(what, WHERE, "leave it out")
        return
    most = topology.limits.tokens_max * routes.token_bytes / MEBIBYTE
    text = (
        f"{routes.token_bytes} bytes a token, up to {most:.1f} MiB for one row of "
        f"limits.tokens_max = {topology.limits.tokens_max}"
    )
    yield Note(text, WHERE)
