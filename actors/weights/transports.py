"""What each transport of weights can do, declared; a run whose parts do not fit is refused by name.

Pure, and free of any library: the supervisor reads it before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from milepost.configs.actors import DeltaConfig, EngineConfig, PublisherConfig, TrainerConfig
from milepost.configs.topology import ActorsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Declared capabilities.

    Attributes:
        engines: kinds of engine that take a version this way.
        trainers: kinds of trainer that give one.
        moves: what it moves over, for people.
        handles: engines on the trainer's own GPU take a handle of its memory.
        one_device_kind: trainer and engines must both be on CPUs, or both on GPUs.
        own_gpus: no GPU may belong to two of its members.
        from_baseline: both sides start from the bytes of the same checkpoint folder.
    """

    engines: frozenset[str]
    trainers: frozenset[str]
    moves: str
    handles: bool = False
    one_device_kind: bool = False
    own_gpus: bool = False
    from_baseline: bool = False


OPENS_HANDLES: Final = frozenset({"embedded"})
"""Kinds of engine that copy a version out of the trainer's memory."""
READS_TENSORS: Final = frozenset({"embedded"})
"""Kinds of engine that can fill their weights with random bytes, and read them back by name."""
TRANSPORTS: Final[dict[str, Transport]] = {
    "direct": Transport(
        engines=frozenset({"embedded", "sglang"}),
        trainers=frozenset({"fsdp"}),
        moves="messages; shared memory between processes of one host, CUDA IPC within one GPU",
        handles=True,
    ),
    "disk-delta": Transport(
        engines=frozenset({"embedded", "sglang"}),
        trainers=frozenset({"fsdp"}),
        moves="what changed, over a disk that every host reaches",
        from_baseline=True,
    ),
    "broadcast": Transport(
        engines=frozenset({"embedded"}),
        trainers=frozenset({"fsdp"}),
        moves="torch.distributed: gloo between CPUs, NCCL between GPUs",
        one_device_kind=True,
        own_gpus=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A combination that cannot work.

    Attributes:
        where: path of the setting in the topology.
    """

    what: str
    where: str
    remedy: str


def refusals(
    publisher: PublisherConfig, engine: EngineConfig, trainer: TrainerConfig
) -> Iterator[Refusal]:
    """Everything about the transport that these three tables cannot do together."""
    name = publisher.transport
    transport = TRANSPORTS[name]
    where = "$.actors.publisher.transport"
    for what, kind, kinds in (
        ("engines", engine.kind, transport.engines),
        ("trainers", trainer.kind, transport.trainers),
    ):
        if kind not in kinds:
            known = ", ".join(one for one in TRANSPORTS if kind in _kinds(what, one)) or "none"
            text = f'transport "{name}" does not know {what} of kind "{kind}"'
            yield Refusal(text, where, f"transports that do: {known}")
    ours, theirs = (_device_kind(device) for device in (trainer.device, engine.device))
    if transport.one_device_kind and ours != theirs:
        text = f'transport "{name}" cannot reach from {trainer.device} to {engine.device}'
        yield Refusal(text, where, "put trainer and engines on devices of one kind")
    if transport.own_gpus and ours == "cuda" and _shared(trainer.device, engine):
        text = (
            f'transport "{name}" needs a GPU for each member, and {engine.replicas} engines on '
            f"{engine.device} and the trainer on {trainer.device} share some"
        )
        yield Refusal(text, where, 'set transport = "direct", or give each its own GPU')
    if publisher.check_weight_update_equal and engine.kind not in READS_TENSORS:
        text = f'engines of kind "{engine.kind}" cannot read their tensors back'
        where = "$.actors.publisher.check_weight_update_equal"
        yield Refusal(text, where, "set it to false; the canary compares log-probs all the same")
    yield from _handle_refusals(publisher, engine, trainer)
    if publisher.delta != DeltaConfig() and not transport.from_baseline:
        text = f'[actors.publisher.delta] is read with transport "disk-delta", it is "{name}"'
        yield Refusal(text, "$.actors.publisher.delta", "remove the table, or change transport")


def may_share_gpu(trainer: TrainerConfig, engine: EngineConfig) -> bool:
    """Whether the names of the devices allow that rank 0 and the engine are on one GPU.

    That they are is told by the GPU's UUID alone, which each side finds out when it starts.
    """
    both_cuda = _device_kind(trainer.device) == _device_kind(engine.device) == "cuda"
    return both_cuda and _index(trainer.device) == _index(engine.device)


def offers_handles(actors: ActorsConfig) -> bool:
    """Whether versions are exported on the GPU: some engine may be able to copy them there."""
    publisher, trainer = actors.publisher, actors.trainer
    if publisher is None or trainer is None or publisher.cuda_ipc == "never":
        return False
    fleets = [one for one in (actors.engine, actors.evaluation_engine) if one is not None]
    return TRANSPORTS[publisher.transport].handles and any(
        engine.kind in OPENS_HANDLES and may_share_gpu(trainer, engine) for engine in fleets
    )


def _handle_refusals(
    publisher: PublisherConfig, engine: EngineConfig, trainer: TrainerConfig
) -> Iterator[Refusal]:
    where = "$.actors.publisher.cuda_ipc"
    if not TRANSPORTS[publisher.transport].handles:
        if publisher.cuda_ipc != "auto":
            text = f'it is read with transport "direct", it is "{publisher.transport}"'
            yield Refusal(text, where, "remove it, or change transport")
        return
    if publisher.cuda_ipc != "always":
        return
    if engine.kind not in OPENS_HANDLES:
        text = f'engines of kind "{engine.kind}" open no handles of the trainer\'s memory'
        yield Refusal(text, where, 'set "auto"; SGLang servers get handles from their own actor')
    elif not may_share_gpu(trainer, engine):
        text = f"the trainer on {trainer.device} and an engine on {engine.device} share no GPU"
        yield Refusal(text, where, 'set "auto", or put both on one GPU')


def _index(device: str) -> str:
    """Of a GPU; without one, rank 0 and every engine take the first."""
    return device.partition(":")[2] or "0"


def _kinds(what: str, name: str) -> frozenset[str]:
    transport = TRANSPORTS[name]
    return transport.engines if what == "engines" else transport.trainers


def _device_kind(device: str) -> str:
    return device.partition(":")[0]


def _shared(trainer_device: str, engine: EngineConfig) -> bool:
    """Whether two members are bound to sit on one GPU, as far as the names tell."""
    named = ":" in engine.device
    return named and (engine.replicas > 1 or engine.device == trainer_device)
