"""Checks of what the run is made of: which actors, which names, which model, which data."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Final

from milepost.actors.guests.address import InvitationError, read_tcp
from milepost.configs.dump import dump_topology
from milepost.configs.load import decode, load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import Mode
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Note, Subject

KINDS: Final = (
    "rollout",
    "agent",
    "guests",
    "session",
    "engine",
    "evaluation_engine",
    "buffer",
    "trainer",
    "publisher",
    "evaluator",
)
NEEDED: Final = {
    "grpo": ("rollout", "agent", "session", "engine", "buffer", "trainer", "publisher"),
    "sft": ("rollout", "session", "buffer", "trainer"),
}
"""Estimator -> the actors without which it cannot work."""
USABLE: Final = {"grpo": KINDS, "sft": NEEDED["sft"]}
"""Estimator -> the actors that have anything to do."""
RESERVED: Final = frozenset({*KINDS, "supervisor"})


def topology_reads(subject: Subject) -> Iterator[Finding]:
    """A `RUN/topology.toml` that is not the topology that ran."""
    again = decode(tomllib.loads(dump_topology(subject.topology)))
    if again != subject.topology:
        yield Problem("the topology does not read back as itself", "$")


def actors_fit(subject: Subject) -> Iterator[Finding]:
    """A wait without end for an actor that nobody started; an actor without any work."""
    topology = subject.topology
    present = built_in(topology)
    if not present:
        if not any(custom.significant for custom in topology.custom.values()):
            what = "no actor says when this run is over"
            yield Problem(what, "$.custom", "set significant = true in one of its tables")
        return
    estimator = topology.algorithm.estimator
    for kind in NEEDED[estimator]:
        if kind not in present and not _is_replaced(kind, present):
            what = f"{estimator} needs the actor `{kind}`, and there is none"
            yield Problem(what, "$.actors", f"add [actors.{kind}]")
    evaluator = topology.actors.evaluator
    for kind in present:
        if kind == "evaluator" and evaluator is not None and evaluator.external:
            continue  # it measures checkpoints, which every estimator makes
        if kind not in USABLE[estimator]:
            what = f"{estimator} has no use for the actor `{kind}`"
            remedy = f"remove [actors.{kind}], or set actors.{kind} = false"
            yield Problem(what, f"$.actors.{kind}", remedy)
    for table, config in (("model", topology.model), ("data", topology.data)):
        if config is None:
            yield Problem(f"{estimator} needs the table [{table}]", f"$.{table}", f"add [{table}]")


def _is_replaced(kind: str, present: tuple[str, ...]) -> bool:
    """Guests may run all the episodes, those of evaluations, too."""
    return kind == "agent" and "guests" in present


def guests_find_a_door(subject: Subject) -> Iterator[Finding]:
    """A door that fails to listen after everything else has started."""
    guests = subject.topology.actors.guests
    if guests is None or guests.listen == "ipc":
        return
    try:
        read_tcp(guests.listen)
    except InvitationError as error:
        yield Problem(str(error), "$.actors.guests.listen", 'or "ipc"; PORT 0 takes a free one')


def names_are_free(subject: Subject) -> Iterator[Finding]:
    """Two processes that answer to one name, and messages that reach the wrong one."""
    for name in subject.topology.custom:
        if name in RESERVED:
            what = f"`{name}` is the name of a built-in actor"
            yield Problem(what, f"$.custom.{name}", "choose another name")
        elif not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name):
            remedy = "use a to z, digits and _, a letter first, 32 at most"
            yield Problem(f"`{name}` cannot be a process name", f"$.custom.{name}", remedy)


def model_is_given(subject: Subject) -> Iterator[Finding]:
    """A run that starts from other weights than meant."""
    model = subject.topology.model
    if model is None:
        return
    ways = (("path", model.path), ("made_by", model.made_by), ("create", model.create))
    given = [name for name, value in ways if value]
    if len(given) != 1:
        what = "no starting checkpoint" if not given else f"both {' and '.join(given)} are set"
        yield Problem(what, "$.model", "set exactly one of path, made_by, create")
    if model.create_options and not model.create:
        yield Problem("create_options without create", "$.model.create_options", "set model.create")
    if model.made_by:
        yield from _made_by(model.made_by)


def _made_by(recipe: str) -> Iterator[Finding]:
    where = "$.model.made_by"
    try:
        warm_up = load_topology(recipe)
    except ConfigError as error:
        for problem in error.problems:
            yield Problem(f"`{recipe}` cannot be read: {problem.what}", where, problem.remedy)
        return
    if warm_up.actors.trainer is None:
        what = f"`{recipe}` has no trainer, so it makes no checkpoint"
        yield Problem(what, where, "name a recipe that trains")
    elif warm_up.model is not None and warm_up.model.made_by:
        what = f"`{recipe}` is itself made by `{warm_up.model.made_by}`"
        yield Problem(what, where, "run that one yourself and set model.path")


def staleness_is_settled(subject: Subject) -> Iterator[Finding]:
    """A policy for late groups that never applies; training on older groups than meant."""
    topology = subject.topology
    buffer = topology.actors.buffer
    if buffer is None or topology.algorithm.estimator == "sft":
        return
    where = "$.actors.buffer"
    limit = buffer.max_weight_staleness
    if limit is None and buffer.staleness_policy != "correct":
        what = f'staleness_policy "{buffer.staleness_policy}" without a limit never applies'
        yield Problem(what, f"{where}.max_weight_staleness", "set a number of versions")
    if buffer.late != "correct" and buffer.staleness_policy != "pace":
        what = f'late = "{buffer.late}" is read only with staleness_policy = "pace"'
        yield Problem(what, f"{where}.late", "remove it, or change staleness_policy")
    trains_late = buffer.staleness_policy == "correct" and topology.run.mode is Mode.ASYNC
    if trains_late and topology.algorithm.correction == "none":
        what = "late groups are to be corrected, and algorithm.correction is none"
        remedy = 'set algorithm.correction = "tis", or another staleness_policy'
        yield Problem(what, f"{where}.staleness_policy", remedy)
    if limit is None and topology.run.mode is Mode.ASYNC:
        text = (
            "not set, so no group is ever too old to be trained; only what is in flight and in the "
            "buffer bounds its age"
        )
        yield Note(text, f"{where}.max_weight_staleness")


def over_sampling_is_settled(subject: Subject) -> Iterator[Finding]:
    """Groups that are to be sampled beyond need, and never are; a setting without effect."""
    topology = subject.topology
    rollout, buffer = topology.actors.rollout, topology.actors.buffer
    if rollout is None or buffer is None:
        return
    extra, where = rollout.over_sampling_groups, "$.actors.rollout"
    needed = topology.algorithm.prompts_per_step + extra
    if extra and topology.algorithm.estimator == "sft":
        what = f"over_sampling_groups = {extra}: recorded conversations are not sampled"
        yield Problem(what, f"{where}.over_sampling_groups", "remove it")
    elif extra and buffer.groups_max < needed:
        what = (
            f"over_sampling_groups = {extra} and prompts_per_step = "
            f"{topology.algorithm.prompts_per_step}, but groups_max = {buffer.groups_max}"
        )
        yield Problem(what, "$.actors.buffer.groups_max", f"set {needed} or more")
    if extra and buffer.staleness_policy == "pace":
        what = f"over_sampling_groups = {extra} would leave groups behind that are in time"
        remedy = 'remove it, or set staleness_policy = "correct" or "drop"'
        yield Problem(what, f"{where}.over_sampling_groups", remedy)
    if rollout.partial_rollout and (topology.run.mode is not Mode.SYNC or not extra):
        what = "partial_rollout is read only in the synchronous mode with over_sampling_groups"
        yield Problem(what, f"{where}.partial_rollout", "set both, or remove it")


def built_in(topology: Topology) -> tuple[str, ...]:
    """Kinds of built-in actors that the topology has."""
    return tuple(kind for kind in KINDS if topology.names(kind))
