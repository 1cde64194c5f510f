"""Checks of evaluations: whether there will be scores, and of what."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.actors.rollout.prompts import is_file
from milepost.configs.actors import EvaluatorConfig
from milepost.configs.problem import Problem
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Subject

WHERE = "$.actors.evaluator"


def evaluation_is_possible(subject: Subject) -> Iterator[Finding]:
    """A run that ends without a score, or scores itself on what it trained on."""
    topology = subject.topology
    evaluator, data = topology.actors.evaluator, topology.data
    if evaluator is None or data is None:
        return
    yield from _something_to_do(evaluator)
    if evaluator.external:
        return
    if not data.held_out_prompts and is_file(data.prompts):
        what = f'the file "{data.prompts}" has no held-out part'
        remedy = 'e.g. set it to "FILE.jsonl@[-100:]" and data.prompts to "FILE.jsonl@[:-100]"'
        yield Problem(what, "$.data.held_out_prompts", remedy)
    if data.held_out_prompts == data.prompts and is_file(data.prompts):
        what = "the held-out prompts are the training prompts"
        yield Problem(what, "$.data.held_out_prompts", "cut the file in two with @[a:b]")


def _something_to_do(evaluator: EvaluatorConfig) -> Iterator[Finding]:
    if not (evaluator.at_start or evaluator.at_end or evaluator.every_versions):
        yield Problem("no evaluation at any time", WHERE, "set at_start, at_end or every_versions")
    if not (evaluator.greedy or evaluator.sampled or evaluator.external):
        yield Problem("neither greedy nor sampled evaluation", WHERE, "set one of the two")


def evaluation_has_its_engines(subject: Subject) -> Iterator[Finding]:
    """Engines that nobody asks, a version that never reaches them, a setting without effect."""
    topology = subject.topology
    evaluator, fleet = topology.actors.evaluator, topology.actors.evaluation_engine
    table = "$.actors.evaluation_engine"
    if fleet is not None and evaluator is None:
        remedy = "add [actors.evaluator], or remove the table"
        yield Problem("engines for an evaluator, and there is none", table, remedy)
    if evaluator is None:
        return
    if fleet is not None and evaluator.external:
        what = f'external = "{evaluator.external}" measures checkpoints without any engine'
        yield Problem(what, table, "remove one of the two")
    publisher = topology.actors.publisher
    if fleet is not None and publisher is not None and publisher.transport == "broadcast":
        what = 'transport "broadcast" reaches all engines at once, and these are to lag behind'
        yield Problem(what, table, 'set actors.publisher.transport = "direct" or "disk-delta"')
    if fleet is None and not evaluator.external and evaluator.overflow == "skip":
        what = 'overflow = "skip" without effect: shared engines keep the version being measured'
        remedy = "remove it, or add [actors.evaluation_engine]"
        yield Problem(what, f"{WHERE}.overflow", remedy)
    yield from _external(topology, evaluator)


def _external(topology: Topology, evaluator: EvaluatorConfig) -> Iterator[Finding]:
    if evaluator.external_options and not evaluator.external:
        where = f"{WHERE}.external_options"
        yield Problem("external_options without external", where, "set external")
    if not evaluator.external:
        return
    every, saves = evaluator.every_versions, topology.run.checkpoint_every_steps
    if every and not saves:
        what = f"every_versions = {every}, but checkpoints are made at the end only"
        remedy = f"e.g. set run.checkpoint_every_steps = {every}"
        yield Problem(what, "$.run.checkpoint_every_steps", remedy)
    elif every and every % saves and saves % every:
        what = f"every_versions = {every} and checkpoint_every_steps = {saves} fit no rhythm"
        yield Problem(what, f"{WHERE}.every_versions", f"set a multiple of {saves}")
