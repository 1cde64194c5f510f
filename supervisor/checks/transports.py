"""Checks of how weights get from the trainer to the engines."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from milepost.actors.weights.transports import refusals
from milepost.configs.problem import Problem
from milepost.supervisor.checks.check import Finding, Subject


def transport_fits(subject: Subject) -> Iterator[Finding]:
    """A publication that hangs between two sides which cannot reach each other."""
    actors = subject.topology.actors
    if actors.publisher is None or actors.engine is None or actors.trainer is None:
        return
    fleets = [actors.engine, *([actors.evaluation_engine] if actors.evaluation_engine else [])]
    found = [
        refusal for fleet in fleets for refusal in refusals(actors.publisher, fleet, actors.trainer)
    ]
    for refusal in dict.fromkeys(found):
        yield Problem(refusal.what, refusal.where, refusal.remedy)


def checksum_is_installed(subject: Subject) -> Iterator[Finding]:
    """A publisher that cannot write its first version."""
    publisher = subject.topology.actors.publisher
    if publisher is None or publisher.transport != "disk-delta":
        return
    if publisher.delta.checksum == "blake3" and find_spec("blake3") is None:
        where = "$.actors.publisher.delta.checksum"
        remedy = "pip install 'milepost[blake3]', or set xxh3-128"
        yield Problem("the package `blake3` is not installed", where, remedy)
