"""Checks that limits of neighbouring actors fit one another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from milepost.configs.problem import Problem
from milepost.configs.topology import Topology
from milepost.supervisor.checks.check import Finding, Subject


def tokens_fit(subject: Subject) -> Iterator[Finding]:
    """A conversation that outgrows the model's context or a micro-batch in the middle of a run."""
    topology = subject.topology
    model, limits, trainer = topology.model, topology.limits, topology.actors.trainer
    if model is None or topology.algorithm.estimator == "sft":
        return
    context = model.context_tokens_max
    if limits.tokens_max > context:
        what = f"tokens_max = {limits.tokens_max} is more than the model's context of {context}"
        remedy = f"set limits.tokens_max = {context}, or raise model.context_tokens_max"
        yield Problem(what, "$.limits.tokens_max", remedy)
    if limits.reply_tokens_max > limits.tokens_max:
        what = (
            f"reply_tokens_max = {limits.reply_tokens_max} is more than a whole episode may have "
            f"({limits.tokens_max})"
        )
        yield Problem(what, "$.limits.reply_tokens_max", f"set {limits.tokens_max} or less")
    if trainer is not None and trainer.microbatch_tokens_max < limits.tokens_max:
        what = (
            f"microbatch_tokens_max = {trainer.microbatch_tokens_max} cannot hold one trajectory "
            f"of {limits.tokens_max} tokens"
        )
        yield Problem(
            what, "$.actors.trainer.microbatch_tokens_max", f"set {limits.tokens_max} or more"
        )


def work_fits(subject: Subject) -> Iterator[Finding]:
    """An actor that refuses work which another one may send; a group that never completes."""
    topology = subject.topology
    rollout = topology.actors.rollout
    if rollout is None or topology.algorithm.estimator == "sft":
        return
    budget, samples = rollout.trajectories_in_flight_max, topology.algorithm.samples_per_prompt
    if budget < samples:
        what = f"trajectories_in_flight_max = {budget}, but one group has {samples}"
        where = "$.actors.rollout.trajectories_in_flight_max"
        yield Problem(what, where, f"set {samples} or more")
    yield from _engine_slots(topology)
    evaluated = _evaluated_at_once(topology)
    fleet = topology.actors.evaluation_engine
    shared = evaluated if fleet is None else 0
    rooms = [(*room, budget + shared) for room in _rooms(topology)]
    if topology.actors.session is not None:
        session = topology.actors.session
        place = ("$.actors.session", "sessions_max", session.replicas, session.sessions_max)
        rooms.append((*place, budget + evaluated))
    if fleet is not None:
        place = ("$.actors.evaluation_engine", "requests_max", fleet.replicas, fleet.requests_max)
        rooms.append((*place, evaluated))
    for where, name, replicas, room, wanted in rooms:
        if room * replicas < wanted:
            what = f"{name} = {room} for each of {replicas}, but {wanted} episodes may be in flight"
            remedy = f"set {-(-wanted // replicas)} or more, or lower the number in flight"
            yield Problem(what, f"{where}.{name}", remedy)


def _rooms(topology: Topology) -> Iterator[tuple[str, str, int, int]]:
    """Path, field, replicas and value of each bound on episodes that run at once."""
    actors = topology.actors
    if actors.engine is not None:
        engine = actors.engine
        yield "$.actors.engine", "requests_max", engine.replicas, engine.requests_max


def _evaluated_at_once(topology: Topology) -> int:
    evaluator = topology.actors.evaluator
    if evaluator is None or evaluator.external:
        return 0
    return evaluator.episodes_in_flight_max


def _engine_slots(topology: Topology) -> Iterator[Finding]:
    actors = topology.actors
    for table, engine in (
        ("engine", actors.engine),
        ("evaluation_engine", actors.evaluation_engine),
    ):
        if engine is not None and engine.running_max > engine.slots:
            what = (
                f"running_max = {engine.running_max} requests need a row each, slots = "
                f"{engine.slots}"
            )
            remedy = f"set slots = {engine.running_max} or more; what is left over keeps prefixes"
            yield Problem(what, f"$.actors.{table}.slots", remedy)


def leases_outlast_episodes(subject: Subject) -> Iterator[Finding]:
    """An episode that is well and works long, taken from its agent in the middle."""
    topology = subject.topology
    rollout, actors = topology.actors.rollout, topology.actors
    if rollout is None or (actors.agent is None and actors.guests is None):
        return
    reward_s = topology.data.reward_deadline_s if topology.data is not None else 0.0
    needed_s = topology.limits.seconds_max + reward_s
    if rollout.lease_s < needed_s:
        what = (
            f"lease_s = {rollout.lease_s}, but an episode may go on for {needed_s} s after its "
            "last reply (limits.seconds_max and data.reward_deadline_s), and only replies renew "
            "its lease"
        )
        remedy = f"set {needed_s} or more, or lower limits.seconds_max"
        yield Problem(what, "$.actors.rollout.lease_s", remedy)


def system_limits_agree(subject: Subject) -> Iterator[Finding]:
    """A message that one table allows and the bus refuses; a healthy actor called stuck."""
    topology = subject.topology
    bus, timeouts, publisher = (
        topology.system.bus,
        topology.system.timeouts,
        topology.actors.publisher,
    )
    if bus.body_bytes_max > bus.frame_bytes_max:
        what = f"body_bytes_max = {bus.body_bytes_max} is more than a frame may have"
        yield Problem(what, "$.system.bus.body_bytes_max", f"set {bus.frame_bytes_max} or less")
    if publisher is not None and publisher.bucket_bytes_max > bus.frame_bytes_max:
        what = (
            f"bucket_bytes_max = {publisher.bucket_bytes_max} is more than a frame may have "
            f"({bus.frame_bytes_max})"
        )
        remedy = "lower it, or raise system.bus.frame_bytes_max"
        yield Problem(what, "$.actors.publisher.bucket_bytes_max", remedy)
    if bus.window_messages > bus.inbox_messages_max:
        what = f"window_messages = {bus.window_messages} of one link overfill an inbox"
        remedy = f"set {bus.inbox_messages_max} or less"
        yield Problem(what, "$.system.bus.window_messages", remedy)
    if timeouts.heartbeat_s < 3:
        what = f"heartbeat_s = {timeouts.heartbeat_s}, and an actor is heard once a second"
        yield Problem(what, "$.system.timeouts.heartbeat_s", "set 3 or more")
    if topology.system.recorder.payloads and not topology.system.recorder.enabled:
        what = "payloads = true, and the recorder that would keep them is turned off"
        yield Problem(what, "$.system.recorder.payloads", "set enabled = true, or leave it out")


def devices_are_named(subject: Subject) -> Iterator[Finding]:
    """A process that loads everything and then finds that its device has no such name."""
    actors = subject.topology.actors
    for table, config in (
        ("engine", actors.engine),
        ("evaluation_engine", actors.evaluation_engine),
        ("trainer", actors.trainer),
    ):
        if config is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
            what = f'no device is called "{config.device}"'
            yield Problem(what, f"$.actors.{table}.device", 'set "cpu", "cuda" or "cuda:N"')
