"""Weight epochs as an engine sees them: PREPARE, MOVE, ACTIVATE or ABORT, each checked by name.

Pure: decides what is staged and when it may serve. Invariants:
    EN-1 (whole): a version serves only after every tensor of it came exactly once, with the dtype
        and shape that the model has, and the digest of all of them was right.
    EN-2 (apart): until then, and after any failure, the version that served goes on serving.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from milepost.actors.effects import Effect, Reply, Request, Tell
from milepost.actors.engine.interface import (
    CopyWeights,
    DropEpoch,
    OpenEpoch,
    PullWeights,
    ReceiveWeights,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    CopyBucket,
    EpochAnswer,
    EpochConfirmed,
    PrepareEpoch,
    PullVersion,
    ReceiveVersion,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.shared import VersionSpan, WeightsUsed
from milepost.messages.supervisor import EventReported

_NAMED_MAX = 3
"""Names told of a longer list."""
_DIGESTS_MAX = 1024
"""No reply lives through as many publications."""


@dataclass(slots=True)
class _Open:
    """The version on its way in."""

    prepare: PrepareEpoch
    specs: dict[str, TensorSpec]
    buckets: set[int] = field(default_factory=set)
    """Indices that came."""
    num_staged: int = 0
    """Of these, how many are copied."""
    named: set[str] = field(default_factory=set)
    """Tensors that came."""
    activate: ActivateEpoch | None = None
    """Set while the switch is under way."""

    @property
    def version(self) -> int:
        return self.prepare.version


@dataclass(frozen=True, slots=True)
class _Pending:
    """A work that was ordered, and who waits for its end."""

    request: Request
    opened: _Open
    is_bucket: bool


class Epochs:
    """The epoch state machine of one engine.

    Args:
        name: of the engine.
        manifest: what the model is made of.
        gpu: as of `EngineFacts`.

    Attributes:
        version: the one that serves; None before the first.
        num_activated: switches so far.
        last_pause_s: how long the last one held generation up.
        digests: of the versions that serve or served, the newest `_DIGESTS_MAX`.
    """

    def __init__(self, name: str, manifest: tuple[TensorSpec, ...], gpu: str = "") -> None:
        self._name, self._gpu = name, gpu
        self._manifest = {spec.name: spec for spec in manifest}
        self._open: _Open | None = None
        self._pending: dict[str, _Pending] = {}
        self._num_works = 0
        self.version: int | None = None
        self.num_activated = 0
        self.last_pause_s = 0.0
        self.digests: dict[int, str] = {}

    @property
    def is_switching(self) -> bool:
        """A switch is under way; it cannot be stopped any more."""
        return self._open is not None and self._open.activate is not None

    def has_tensor(self, name: str) -> bool:
        """The model has a tensor of this name."""
        return name in self._manifest

    def prepare(self, message: PrepareEpoch, request: Request) -> list[Effect]:
        """A version is announced; one that was open and not yet activating is forgotten."""
        version = message.version
        if self.is_switching:
            return [self._refuse(request, version, self._busy())]
        if reason := self._specs_fault(message.tensors):
            return [self._refuse(request, version, reason)]
        self._open = _Open(message, {spec.name: spec for spec in message.tensors})
        key = self._key(_Pending(request, self._open, is_bucket=False))
        return [OpenEpoch(key, version, message.tensors, message.randomize)]

    def bucket(self, message: WeightBucket, request: Request) -> list[Effect]:
        """Some tensors came."""
        reason = self._bucket_fault(message.version, message.index, message.names)
        if reason := reason or self._tensors_fault(message):
            return [self._refuse(request, message.version, reason)]
        key = self._bucket_comes(request, message.index, message.names)
        return [StageBucket(key, message.names, message.tensors)]

    def copy(self, message: CopyBucket, request: Request) -> list[Effect]:
        """Some tensors lie on this GPU."""
        reason = self._bucket_fault(message.version, message.index, message.names)
        if not reason and not self._gpu:
            reason = "this engine opens no handles of a GPU's memory, it takes bytes"
        if not reason and len(message.names) != len(message.offsets):
            reason = f"{len(message.names)} names for {len(message.offsets)} offsets"
        if reason:
            return [self._refuse(request, message.version, reason)]
        assert self._open is not None
        specs = tuple(self._open.specs[name] for name in message.names)
        key = self._bucket_comes(request, message.index, message.names)
        return [CopyWeights(key, specs, message.offsets, message.memory)]

    def pull(self, message: PullVersion, request: Request) -> list[Effect]:
        """Everything lies on a disk."""
        if reason := self._whole_fault(message.version):
            return [self._refuse(request, message.version, reason)]
        key = self._everything_comes(request)
        return [PullWeights(key, message.version, message.root)]

    def receive(self, message: ReceiveVersion, request: Request) -> list[Effect]:
        """Everything is about to be broadcast."""
        reason = self._whole_fault(message.version)
        if not reason and (fault := self._names_fault(message.buckets)):
            reason = fault
        if reason:
            return [self._refuse(request, message.version, reason)]
        assert self._open is not None
        specs = self._open.specs
        buckets = tuple(tuple(specs[name] for name in names) for names in message.buckets)
        work = ReceiveWeights(
            key=self._everything_comes(request),
            rendezvous=message.rendezvous,
            group=message.group,
            rank=message.rank,
            world_size=message.world_size,
            deadline_s=message.deadline_s,
            buckets=buckets,
        )
        return [work]

    def activate(self, message: ActivateEpoch, request: Request) -> list[Effect]:
        """Serve what came, if all of it did."""
        if reason := self._activation_fault(message):
            return [self._refuse(request, message.version, reason)]
        assert self._open is not None
        self._open.activate = message
        key = self._key(_Pending(request, self._open, is_bucket=False))
        return [SwitchWeights(key, message.version, message.mode, message.digest)]

    def abort(self, message: AbortEpoch, request: Request | None) -> list[Effect]:
        """Forget what came. Without an open epoch of this version there is nothing to forget."""
        if self.is_switching:
            return [] if request is None else [self._refuse(request, message.version, self._busy())]
        effects: list[Effect] = []
        if self._open is not None and self._open.version == message.version:
            effects += self.forget()
        if request is not None:
            effects.append(Reply(request, EpochAnswer(version=message.version, ok=True)))
        return effects

    def forget(self) -> list[Effect]:
        """Drop an epoch whose publisher is gone; a switch under way goes on."""
        if self._open is None or self.is_switching:
            return []
        self._open = None
        self._num_works += 1
        return [DropEpoch(f"epoch/{self._num_works}")]

    def done(self, key: str, result: object, error: str) -> list[Effect]:
        """A work of ours ended: answer who waits for it."""
        pending = self._pending.pop(key, None)
        if pending is None:
            return self._kept(error)  # of a `DropEpoch`, which nobody waits for
        request, opened = pending.request, pending.opened
        if isinstance(result, Switched):
            return [Reply(request, self._switched(result)), *self._kept(result.kept)]
        if not error:
            opened.num_staged += pending.is_bucket
            device = "" if pending.is_bucket else self._gpu
            answer = EpochAnswer(version=opened.version, ok=True, device=device)
            return [Reply(request, answer)]
        effects: list[Effect] = [self._refuse(request, opened.version, error)]
        if opened is self._open:
            opened.activate = None
            effects += self.forget()
        return effects

    def weights_used(
        self, spans: tuple[VersionSpan, ...], kv_versions: tuple[int, ...]
    ) -> tuple[WeightsUsed, ...]:
        """What stands behind these spans of a reply, once for each version."""
        oldest: dict[int, int] = {}
        for span, kv_version in zip(spans, kv_versions, strict=True):
            oldest[span.version] = min(kv_version, oldest.get(span.version, kv_version))
        return tuple(
            WeightsUsed(version=version, digest=self._digest(version), kv_version=kv_version)
            for version, kv_version in oldest.items()
        )

    def validate(self) -> None:
        """Assert the machine's invariants."""
        if self._open is not None:
            assert self._open.num_staged <= len(self._open.buckets), "staged more than came"
            assert self._open.named <= self._open.specs.keys(), "EN-1: an unknown tensor came"
            if self._open.activate is not None:
                assert self._open.named == self._open.specs.keys(), "EN-1: activating a part"

    def __str__(self) -> str:
        """Serving and incoming version, for people."""
        serving = "no version" if self.version is None else f"version {self.version}"
        if self._open is None:
            return f"serves {serving}"
        came, wanted = len(self._open.buckets), self._open.prepare.num_buckets
        stage = "switching" if self.is_switching else f"{came}/{wanted} buckets"
        return f"serves {serving}, version {self._open.version} {stage}"

    # ---- checks --------------------------------------------------------------------------

    def _specs_fault(self, tensors: tuple[TensorSpec, ...]) -> str:
        names = Counter(spec.name for spec in tensors)
        if twice := [name for name, count in names.items() if count > 1]:
            return f"tensors named twice: {_some(twice)}"
        if unknown := [name for name in names if name not in self._manifest]:
            return f"tensors this model does not have: {_some(unknown)}"
        if missing := [name for name in self._manifest if name not in names]:
            return f"tensors this model needs and the epoch lacks: {_some(missing)}"
        others = [spec for spec in tensors if spec != self._manifest[spec.name]]
        return "; ".join(
            f"{spec.name} is {spec.dtype} {spec.shape}, the model has "
            f"{self._manifest[spec.name].dtype} {self._manifest[spec.name].shape}"
            for spec in others[:_NAMED_MAX]
        )

    def _bucket_fault(self, version: int, index: int, names: tuple[str, ...]) -> str:
        if fault := self._version_fault(version):
            return fault
        assert self._open is not None
        if index >= self._open.prepare.num_buckets:
            return f"bucket {index} of {self._open.prepare.num_buckets}"
        if index in self._open.buckets:
            return f"bucket {index} came twice"
        seen: set[str] = set()
        for name in names:
            if name not in self._open.specs:
                return f"tensor {name} was not announced"
            if name in self._open.named or name in seen:
                return f"tensor {name} came twice"
            seen.add(name)
        return ""

    def _tensors_fault(self, message: WeightBucket) -> str:
        assert self._open is not None
        if len(message.names) != len(message.tensors):
            return f"{len(message.names)} names for {len(message.tensors)} tensors"
        for name, tensor in zip(message.names, message.tensors, strict=True):
            spec = self._open.specs[name]
            if (spec.dtype, spec.shape) != (tensor.dtype, tensor.shape):
                return f"{name} is {tensor}, announced as {spec.dtype} {spec.shape}"
        return ""

    def _whole_fault(self, version: int) -> str:
        """Why a message that brings a whole version cannot be taken."""
        if fault := self._version_fault(version):
            return fault
        assert self._open is not None
        if self._open.prepare.num_buckets != 1:
            return f"a whole version came, announced were {self._open.prepare.num_buckets} buckets"
        return "the version came twice" if self._open.buckets else ""

    def _names_fault(self, buckets: tuple[tuple[str, ...], ...]) -> str:
        assert self._open is not None
        names = Counter(name for bucket in buckets for name in bucket)
        if twice := [name for name, count in names.items() if count > 1]:
            return f"tensors broadcast twice: {_some(twice)}"
        if unknown := sorted(names.keys() - self._open.specs.keys()):
            return f"tensors that were not announced: {_some(unknown)}"
        if missing := sorted(self._open.specs.keys() - names.keys()):
            return f"tensors that no broadcast brings: {_some(missing)}"
        return ""

    def _activation_fault(self, message: ActivateEpoch) -> str:
        if fault := self._version_fault(message.version):
            return fault
        assert self._open is not None
        opened = self._open
        if len(opened.buckets) < opened.prepare.num_buckets:
            absent = sorted(set(range(opened.prepare.num_buckets)) - opened.buckets)
            return f"buckets that never came: {_some([str(index) for index in absent])}"
        if absent_names := sorted(opened.specs.keys() - opened.named):
            return f"tensors that never came: {_some(absent_names)}"
        if opened.num_staged < len(opened.buckets):
            return f"{len(opened.buckets) - opened.num_staged} buckets are still being copied"
        return ""

    def _version_fault(self, version: int) -> str:
        if self._open is None:
            return f"no epoch is open, version {version} was not prepared"
        if self._open.version != version:
            return f"the open epoch is version {self._open.version}, not {version}"
        return self._busy() if self.is_switching else ""

    def _busy(self) -> str:
        assert self._open is not None
        return f"version {self._open.version} is being activated"

    # ---- answers -------------------------------------------------------------------------

    def _digest(self, version: int) -> str:
        """What is served as this version, empty when nobody can tell any more.

        A reply that ends right after a switch overtakes the news that the switch is done.
        """
        opened = self._open
        if opened is not None and opened.activate is not None and opened.version == version:
            return self.digests.get(version, opened.activate.digest)
        return self.digests.get(version, "")

    def _everything_comes(self, request: Request) -> str:
        """Key of the one work that stages all tensors."""
        assert self._open is not None
        return self._bucket_comes(request, 0, tuple(self._open.specs))

    def _bucket_comes(self, request: Request, index: int, names: tuple[str, ...]) -> str:
        """Key of the work that stages these tensors."""
        assert self._open is not None
        self._open.buckets.add(index)
        self._open.named.update(names)
        return self._key(_Pending(request, self._open, is_bucket=True))

    def _switched(self, switched: Switched) -> EpochConfirmed:
        assert self._open is not None, "a switch without an epoch"
        assert self._open.activate is not None, "a switch without an order"
        activate = self._open.activate
        self.version, self._open = activate.version, None
        self.num_activated += 1
        self.last_pause_s = switched.pause_s
        # A version that comes back is the newest again.
        self.digests.pop(activate.version, None)
        self.digests[activate.version] = activate.digest
        if len(self.digests) > _DIGESTS_MAX:
            del self.digests[next(iter(self.digests))]
        return EpochConfirmed(
            version=activate.version,
            digest=activate.digest,
            pause_s=switched.pause_s,
            num_in_flight=switched.num_in_flight,
        )

    def _kept(self, reason: str) -> list[Effect]:
        """What was staged could not be let go. Whatever serves does; the next epoch lets go."""
        said = f"{self._name} {self}, and could not let go of what was staged: {reason}"
        event = EventReported(source=self._name, kind="staging_kept", text=said)
        return [Tell("supervisor", event)] if reason else []

    def _refuse(self, request: Request, version: int, reason: str) -> Reply:
        return Reply(request, EpochAnswer(version=version, ok=False, reason=reason))

    def _key(self, pending: _Pending) -> str:
        self._num_works += 1
        key = f"epoch/{self._num_works}"
        self._pending[key] = pending
        return key


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
