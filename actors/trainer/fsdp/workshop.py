"""Everything one rank owns, put together, and the work its core orders, carried out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.engine.embedded.shape import read_shape
from milepost.actors.engine.mixture import has_experts
from milepost.actors.session.families import bundled_template
from milepost.actors.session.text.sources import TextHashes, text_hashes
from milepost.actors.trainer.fsdp.attention import has_varlen
from milepost.actors.trainer.fsdp.blueprint import Allocate, Blueprint, ordinary_memory
from milepost.actors.trainer.fsdp.checkpoint import (
    CheckpointMeta,
    folder_name,
    load_checkpoint,
    save_checkpoint,
)
from milepost.actors.trainer.fsdp.export import (
    DTYPES,
    Weights,
    export_tensors,
    export_version,
    probe_rows,
)
from milepost.actors.trainer.fsdp.exporting import make_exporter
from milepost.actors.trainer.fsdp.group import RankGroup, open_group
from milepost.actors.trainer.fsdp.hugging_face import write_hugging_face
from milepost.actors.trainer.fsdp.learner import Learner, LearnerSettings
from milepost.actors.trainer.fsdp.memory import keep_freed_memory
from milepost.actors.trainer.fsdp.model import ModelRefused, PackedPolicy, load_model
from milepost.actors.trainer.fsdp.optimizer import Optimizer
from milepost.actors.trainer.fsdp.replay import RoutesReplay
from milepost.actors.trainer.fsdp.sender import Sender
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.trainer.fsdp.turn_probe import TurnProbe
from milepost.actors.trainer.losses.objective import Objective
from milepost.actors.trainer.rows import read_batch
from milepost.actors.trainer.works import (
    Exported,
    ExportVersion,
    KeepMemory,
    ModelFacts,
    ReadBack,
    SaveCheckpoint,
    Saved,
    ScoreTokens,
    SendBuckets,
    TrainBatch,
)
from milepost.configs.run import AlgorithmConfig
from milepost.configs.seeds import derive_seed
from milepost.configs.topology import Topology
from milepost.messages.publisher import VersionReady

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from milepost.actors.effects import Work
    from milepost.messages.bulk import Bulk

CHECKPOINTS: Final = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where one rank works.

    Attributes:
        allocate: memory for versions that travel to the publisher.
    """

    topology: Topology
    rank: int
    run_id: str
    run_folder: Path
    resume_step: int | None
    allocate: Allocate = ordinary_memory


class Workshop:
    """One rank's model, optimizer and files. Used by one thread only.

    Args:
        bench: which rank of which run.

    Raises:
        ModelRefused: the model cannot be trained, see there; or it is dense and has no routes.
        NotReplayable: its routers cannot be told what to choose.
        CheckpointDamaged: the checkpoint to go on from is not whole, or of another tokenizer.
        ValueError: a device this machine lacks.
    """

    def __init__(self, bench: Bench) -> None:
        topology = bench.topology
        trainer, model = topology.actors.trainer, topology.model
        assert trainer is not None, "the topology has no trainer"
        if model is None or not model.path:
            raise ModelRefused("the topology names no model.path to train from")
        torch.set_num_threads(trainer.threads)
        if torch.device(trainer.device).type == "cpu":
            keep_freed_memory()
        torch.manual_seed(derive_seed(topology.run.seed, "trainer", bench.rank))
        self._bench, self._topology = bench, topology
        self._source = model.folder
        self._dtype = DTYPES[model.dtype]
        self._group = open_group(
            rank=bench.rank,
            world_size=trainer.ranks,
            device=trainer.device,
            rendezvous=bench.run_folder / "rendezvous" / bench.run_id,
            deadline_s=topology.system.timeouts.ready_s,
        )
        self._learner = _make_learner(topology, self._source, self._group)
        self._probes = probe_rows(self._learner.policy.module.vocabulary)
        self._turn_probe = TurnProbe.of(topology)
        self._blueprint: Blueprint | None = None
        self._replays = topology.algorithm.replay_routes
        self.model = _model_facts(
            self._source, model.family, self._learner.policy, replays=self._replays
        )
        self._text = TextHashes(self.model.tokenizer_hash, self.model.template_hash)
        publisher = topology.actors.publisher
        broadcasts = publisher is not None and publisher.transport == "broadcast"
        self._sender = Sender(trainer.device) if broadcasts and self._group.leads else None
        self._exporter, self._shares = make_exporter(topology, self._group)
        self.meta: CheckpointMeta | None = None
        if bench.resume_step is not None:
            folder = bench.run_folder / CHECKPOINTS / folder_name(bench.resume_step)
            self.meta = load_checkpoint(folder, self._learner, self._text)

    def facts(self) -> dict[str, object]:
        """What READY tells the supervisor."""
        policy, device = self._learner.policy, self._group.device
        varlen = device.type == "cuda" and self._dtype == torch.bfloat16 and has_varlen()
        return {
            "parameters": policy.num_parameters,
            "vocabulary": self.model.vocabulary,
            "tokenizer_hash": self.model.tokenizer_hash,
            "template_hash": self.model.template_hash,
            "dtype": str(self._dtype).removeprefix("torch."),
            "device": str(device),
            "cuda_ipc": self._shares,
            "attention": "varlen" if varlen else "padded blocks",
            "fused": ", ".join(policy.fused) or "none",
            "sharded": policy.sharding,
            "routes": _told_of_routes(self.model, replays=self._replays),
            "rank": self._group.rank,
            "ranks": self._group.world_size,
            "version": self.meta.step if self.meta else 0,
            "optimizer_step": self._learner.optimizer.step_count,
            "torch": str(torch.__version__),
        }

    def perform(self, work: Work) -> object:
        """Carry out one order; collective over the ranks."""
        match work:
            case TrainBatch(_, batch):
                minibatches = read_batch(batch, self._topology.algorithm)
                return self._learner.train(minibatches, batch.step)
            case ExportVersion():
                return self._export(work)
            case SaveCheckpoint():
                return self._save(work)
            case ScoreTokens(_, rows, temperature):
                return self._score(rows, temperature)
            case ReadBack() | KeepMemory():
                return self._look_after(work)
            case _:
                raise TypeError(f"no such work: {work}")

    def take_logprobs(self) -> list[list[NDArray[Any]]]:
        """As of `Learner`."""
        return self._learner.take_logprobs()

    def send(self, work: SendBuckets) -> None:
        """Broadcast a version; another thread may train meanwhile.

        Raises:
            BroadcastFailed: an engine did not come, or left.
        """
        assert self._sender is not None, "a broadcast without the transport"
        self._sender.send(work)

    def close(self) -> None:
        """Leave the group of ranks."""
        self._group.close()

    def _export(self, work: ExportVersion) -> Exported:
        started = time.perf_counter()
        version = work.version
        publisher = self._topology.actors.publisher
        assert publisher is not None, "a version is exported for a publisher"
        probed = self._learner.score(self._probes, 1.0)
        turn = self._turn_probe.take(self._learner) if self._turn_probe else None
        trained, self._learner.moved = self._learner.moved, False
        memory = None
        if self._exporter is not None:
            weights, memory = self._exporter.export(self._learner.policy, version)
        else:
            written = self._write(version, publisher.bucket_bytes_max)
            if written is None:
                return Exported(None, (), time.perf_counter() - started)
            weights = written
        ready = VersionReady(
            version=version,
            tensors=weights.tensors,
            num_buckets=len(weights.buckets),
            digest=weights.digest,
            tensor_digests=weights.tensor_digests,
            trained=trained,
            rendezvous=self._sender.address if self._sender else "",
            memory=memory,
            final=work.final,
            probe_rows=tuple(to_bulk(row) for row in self._probes),
            probe_logprobs=tuple(to_bulk(row) for row in probed),
            probe_turn=turn,
        )
        buckets = weights.buckets
        if self._sender is not None:
            buckets = self._sender.keep(version, buckets, published=work.published)
        return Exported(ready, buckets, time.perf_counter() - started)

    def _write(self, version: int, bytes_max: int) -> Weights | None:
        """A version as bytes, where they can travel from; None on other ranks than 0."""
        policy = self._learner.policy
        if self._blueprint is None:
            self._blueprint = Blueprint.of(policy, self._dtype, bytes_max=bytes_max)
        return export_version(
            policy,
            self._group,
            self._blueprint,
            version=version,
            allocate=ordinary_memory if self._sender else self._bench.allocate,
        )

    def _look_after(self, work: ReadBack | KeepMemory) -> object:
        """Versions on the GPU; another thread may train and export meanwhile."""
        assert self._exporter is not None, f"{work.key} without a version on the GPU"
        if isinstance(work, ReadBack):
            return self._exporter.read_back(work.version)
        self._exporter.keep(work.versions, announced=work.announced)
        return None

    def _save(self, work: SaveCheckpoint) -> Saved:
        started = time.perf_counter()
        folder = save_checkpoint(
            self._bench.run_folder / CHECKPOINTS,
            self._learner,
            step=work.step,
            trained_group_ids=work.trained_group_ids,
            trained_before=work.trained_before,
            keep=self._topology.run.checkpoints_keep,
            text=self._text,
            write_hugging_face=self._write_hugging_face,
        )
        seconds = time.perf_counter() - started
        return Saved(work.step, str(folder), seconds)

    def _write_hugging_face(self, folder: Path) -> None:
        tensors = export_tensors(self._learner.policy, self._group, self._dtype)
        if self._group.leads:
            write_hugging_face(folder, self._source, tensors)

    def _score(self, rows: tuple[Bulk, ...], temperature: float) -> tuple[Bulk, ...]:
        arrays = [from_bulk(row).astype(np.int32) for row in rows]
        return tuple(to_bulk(scored) for scored in self._learner.score(arrays, temperature))


def _model_facts(folder: Path, family: str, policy: ShardedPolicy, *, replays: bool) -> ModelFacts:
    text = text_hashes(folder, bundled_template(family))
    return ModelFacts(
        vocabulary=policy.module.vocabulary,
        tokenizer_hash=text.tokenizer,
        template_hash=text.template,
        routes=read_shape(folder).routes if replays else None,
        is_mixture=has_experts(folder),
    )


def _told_of_routes(model: ModelFacts, *, replays: bool) -> str:
    if not model.is_mixture:
        return "none, the model is dense"
    return "replayed" if replays else "the trainer's own"


def _make_learner(topology: Topology, source: Path, group: RankGroup) -> Learner:
    trainer, model, algorithm = topology.actors.trainer, topology.model, topology.algorithm
    assert trainer is not None
    assert model is not None
    lm = load_model(
        source,
        gradient_checkpointing=trainer.gradient_checkpointing,
        dropout=algorithm.estimator == "sft",
    )
    replay = None
    if algorithm.replay_routes:
        if (routes := read_shape(source).routes) is None:
            raise ModelRefused(
                f"{source} has no mixture of experts, so it has no routes: set "
                f"algorithm.replay_routes = false"
            )
        replay = RoutesReplay(lm, routes)
    policy = ShardedPolicy(PackedPolicy(lm, replay), group, compute=DTYPES[model.dtype])
    steps = topology.run.steps * algorithm.minibatches_per_step
    settings = LearnerSettings(
        objective=objective_of(algorithm),
        aggregation=algorithm.aggregation,
        microbatch_tokens_max=trainer.microbatch_tokens_max,
        keeps_logprobs=topology.archive.enabled,
    )
    return Learner(policy, Optimizer(policy, group, trainer, steps), group, settings)


def objective_of(algorithm: AlgorithmConfig) -> Objective:
    """The part of `[algorithm]` that is about loss tokens."""
    return Objective(
        estimator=algorithm.estimator,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip,
        correction=algorithm.correction,
        correction_low=algorithm.correction_low,
        correction_high=algorithm.correction_high,
        entropy_coef=algorithm.entropy_coef,
        kl_coef=algorithm.kl_coef,
    )
