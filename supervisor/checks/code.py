"""Checks of the user's own code and chat template, loaded in a process of its own.

The supervisor never imports it: an agent may import torch, end the process, or hang, and none of
that may happen to the process that watches all others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

import msgspec

from milepost.actors.engine.settings import SettingsDamaged, read_settings, size_of
from milepost.actors.rollout.prompts import is_file
from milepost.configs.actors import SessionConfig
from milepost.configs.problem import Problem
from milepost.configs.run import ModelConfig
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Subject
from milepost.supervisor.checks.parts import (
    FILTERS,
    LEAF_PICKERS,
    LEAF_POST_PROCESSORS,
    MATCHERS,
)
from milepost.supervisor.cleanup.processes import RUN_VARIABLE, kill_all
from milepost.supervisor.probe import Fault, Probe, Target

LENGTHS_S: Final = 300.0
"""To read the longest file of prompts; rendering them has its own, shorter limit."""
LENGTHS: Final = "the limit of this check"
HELLO: Final = "system.timeouts.hello_s"
READY: Final = "system.timeouts.ready_s"
KILL_S: Final = 5.0
"""For what the user's code has started to end once it is killed."""


def user_code_loads(subject: Subject) -> Iterator[Finding]:
    """An agent that cannot be made, a reward that is not to be found, when all else has started."""
    targets = targets_of(subject.topology)
    if not targets:
        return
    timeouts = subject.topology.system.timeouts
    # An agent is made as well, which may take what an actor may take to become ready.
    agents = tuple(target for target in targets if target.kind == "agent")
    yield from problems(agents, timeouts.ready_s, READY)
    rest = tuple(target for target in targets if target.kind != "agent")
    yield from problems(rest, timeouts.hello_s)


def prompts_have_room(subject: Subject) -> Iterator[Finding]:
    """A prompt longer than the model's context or the episode's limit, met when its turn comes."""
    model, session = subject.topology.model, subject.topology.actors.session
    if model is None or session is None or not _has_template(model):
        return
    yield from problems(tuple(_lengths(subject.topology, model, session)), LENGTHS_S, LENGTHS)


def problems(
    targets: tuple[Target, ...], deadline_s: float, limit: str = HELLO
) -> Iterator[Problem]:
    """What `probe` finds, and where."""
    for target, fault in probe(targets, deadline_s, limit):
        yield Problem(fault.what, fault.where or target.where, fault.remedy)


def targets_of(topology: Topology) -> tuple[Target, ...]:
    """Everything in the topology that is named by import path or by device."""
    found: list[Target] = []
    actors, data, model = topology.actors, topology.data, topology.model
    if actors.agent is not None:
        agent = actors.agent
        made = {"options": agent.options, "data_options": data.options if data is not None else {}}
        found.append(Target("agent", agent.agent, "$.actors.agent.agent", made))
    if data is not None:
        seed = {"seed": topology.run.seed, "options": data.options}
        if not is_file(data.prompts):
            found.append(
                Target("prompts", data.prompts, "$.data.prompts", {"split": "train"} | seed)
            )
        held_out = data.held_out_prompts or data.prompts
        asks = actors.evaluator is not None and not actors.evaluator.external
        if asks and not is_file(held_out):
            options = {"split": "held_out"} | seed
            found.append(Target("prompts", held_out, "$.data.held_out_prompts", options))
        if data.reward:
            found.append(Target("reward", data.reward, "$.data.reward"))
    if model is not None and model.create:
        found.append(Target("create", model.create, "$.model.create"))
    if actors.session is not None:
        found += _session_targets(actors.session)
    if model is not None and actors.session is not None and _has_template(model):
        options = {
            "family": model.family,
            "options": actors.session.template_options,
            "vocabulary": _vocabulary(model),
        }
        found.append(Target("template", model.path, "$.model.family", options))
    if actors.buffer is not None:
        found += [
            Target("filter", path, f"$.actors.buffer.filters[{index}]")
            for index, path in enumerate(actors.buffer.filters)
            if path not in FILTERS
        ]
    for name, custom in topology.custom.items():
        found.append(Target("core", custom.core, f"$.custom.{name}.core"))
    if actors.evaluator is not None and actors.evaluator.external:
        path, made = actors.evaluator.external, {"options": actors.evaluator.external_options}
        found.append(Target("evaluation", path, "$.actors.evaluator.external", made))
    for table, config in (
        ("engine", actors.engine),
        ("evaluation_engine", actors.evaluation_engine),
        ("trainer", actors.trainer),
    ):
        if config is not None and config.device != "cpu":
            found.append(Target("device", config.device, f"$.actors.{table}.device"))
    return tuple(found)


def _lengths(topology: Topology, model: ModelConfig, session: SessionConfig) -> Iterator[Target]:
    """Every source of prompts, with the limit that a prompt of it meets first."""
    data, limits = topology.data, topology.limits
    if data is None:
        return
    whole = topology.algorithm.estimator == "sft"
    tokens_max, limit = model.context_tokens_max, "model.context_tokens_max"
    if not whole and limits.tokens_max < tokens_max:
        tokens_max, limit = limits.tokens_max, "limits.tokens_max"
    options = {
        "seed": topology.run.seed,
        "options": data.options,
        "folder": str(model.folder),
        "family": model.family,
        "template_options": session.template_options,
        "tokens_max": tokens_max,
        "limit": limit,
        "whole": whole,
    }
    source = {"source": data.prompts, "split": "train"}
    yield Target("lengths", data.prompts, "$.data.prompts", options | source)
    held_out = data.held_out_prompts or ("" if is_file(data.prompts) else data.prompts)
    evaluator = topology.actors.evaluator
    if evaluator is not None and not evaluator.external and held_out:
        source = {"source": held_out, "split": "held_out"}
        yield Target("lengths", held_out, "$.data.held_out_prompts", options | source)


def _has_template(model: ModelConfig) -> bool:
    """A model that a recipe makes is proven when the session actor starts."""
    folder = model.folder
    return bool(model.path) and (folder / "tokenizer.json").is_file()


def _vocabulary(model: ModelConfig) -> int:
    """Rows of the embedding; 0 where another check says what is wrong with them."""
    try:
        return size_of(read_settings(model.folder), "vocab_size")
    except (OSError, SettingsDamaged):
        return 0


def _session_targets(session: SessionConfig) -> Iterator[Target]:
    tree, where = session.tree, "$.actors.session"
    if session.matcher not in MATCHERS:
        yield Target("matcher", session.matcher, f"{where}.matcher")
    if tree.leaf_picker not in LEAF_PICKERS:
        yield Target("leaves", tree.leaf_picker, f"{where}.tree.leaf_picker")
    if tree.leaf_post_processor not in LEAF_POST_PROCESSORS:
        yield Target("leaves", tree.leaf_post_processor, f"{where}.tree.leaf_post_processor")


def probe(
    targets: tuple[Target, ...], deadline_s: float, limit: str = HELLO
) -> Iterator[tuple[Target, Fault]]:
    """What is wrong with each target, found in a child process.

    When the child dies or hangs, the rest is loaded in another one, so that one bad agent hides
    no other problem.

    Args:
        targets: what to load, in this order.
        deadline_s: for the whole of them, in one child.
        limit: what it is called.
    """
    rest = targets
    while rest:
        probes, end = _run_child(rest, deadline_s, limit)
        for target, result in zip(rest, probes, strict=False):
            for fault in result.faults:
                yield target, fault
        done = len(probes)
        if done < len(rest):
            target = rest[done]
            remedy = "do nothing at import that ends, blocks or replaces the process"
            if target.kind == "agent":
                remedy += ", nor in __init__: what takes its time belongs into `start`"
            yield target, Fault(f"loading `{target.path}` {end}", remedy)
        rest = rest[done + 1 :]


def _run_child(
    targets: tuple[Target, ...], deadline_s: float, limit: str
) -> tuple[list[Probe], str]:
    """Results of the targets that the child got done with, and how it ended.

    Everything goes through files: a pipe would stay open as long as anything that the user's code
    has started holds it. They have no name, so a check that is killed leaves nothing behind.
    """
    mark = f"check-{secrets.token_hex(8)}"
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as answers,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(msgspec.json.encode(targets))
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "milepost.supervisor.probe", str(answers.fileno())],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(answers.fileno(),),
            start_new_session=True,
            env=os.environ | {RUN_VARIABLE: mark},
        )
        try:
            code = process.wait(timeout=deadline_s)
            errors.seek(0)
            end = _how_it_ended(code, errors.read())
        except subprocess.TimeoutExpired:
            end = f"took longer than {limit} = {deadline_s:g}"
        finally:
            _kill_all(process, mark)
        answers.seek(0)
        lines = answers.read().splitlines()
    return [msgspec.json.decode(line, type=Probe) for line in lines], end


def _kill_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Whatever the user's code has started goes with the child, also what left its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # One that the kernel holds has been sent its signal, and ends when it is let go.
    with contextlib.suppress(TimeoutError):
        kill_all((), mark, deadline_s=KILL_S)


def _how_it_ended(code: int, errors: bytes) -> str:
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    words = f": {last}" if last else ""
    if code < 0:
        return f"ended the process with {signal.Signals(-code).name}{words}"
    return f"ended the process with exit code {code}{words}"
