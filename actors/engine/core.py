"""The engine actor: who asked for what, and which version serves.

Owns: requests in flight, the state of the weight epoch.
Receives: generate, score, abort, forget from sessions (and the publisher's canary); epoch orders.
Sends: replies; GeneratedPart of streamed replies to who asked; EngineReady to the publisher.
Invariants:
    EN-1, EN-2: see `epochs`.
    EN-3 (one answer): every request gets exactly one answer, and none before a version serves.
    EN-4 (bounded): no more than `requests_max` requests are in flight.
Starts: empty, serving nothing; says so to the publisher.
Dies: when the backend fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import (
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    WorkDone,
)
from milepost.actors.engine.epochs import Epochs
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    EngineFacts,
    Finished,
    ForgetOrder,
    GenerateOrder,
    Progress,
    ReadDigests,
    Rejected,
    ScoreFinished,
    ScoreOrder,
)
from milepost.actors.engine.parts import Parts
from milepost.messages.bulk import Bulk
from milepost.messages.engine import (
    AbortEpoch,
    AbortRequests,
    ActivateEpoch,
    CopyBucket,
    DigestTensors,
    ForgetSessions,
    Generate,
    Generated,
    GenerateRefused,
    PrepareEpoch,
    PullVersion,
    ReceiveVersion,
    Score,
    Scored,
    TensorDigests,
    WeightBucket,
)
from milepost.messages.publisher import EngineReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import Drain, Drained, PeerRestarted


@dataclass(frozen=True, slots=True)
class _InFlight:
    request: Request
    request_id: str
    """As the asker called it; empty for scores."""
    since_s: float


class Engine:
    """See the module.

    Args:
        name: process name.
        publisher: process name of the publisher; empty without one.
        facts: of the backend.
        requests_max: most requests in flight.
        incarnation: of this process.
    """

    def __init__(
        self,
        name: str,
        publisher: str,
        facts: EngineFacts,
        requests_max: int,
        *,
        incarnation: int = 0,
    ) -> None:
        self._name, self._publisher, self._incarnation = name, publisher, incarnation
        self._facts, self._requests_max = facts, requests_max
        self._epochs = Epochs(name, facts.manifest, facts.gpu)
        self._in_flight: dict[str, _InFlight] = {}
        self._parts = Parts()
        self._drains: list[Request] = []
        self._digests: dict[str, tuple[Request, int, int]] = {}
        """Tensors being read back: who asked, under which version, and after how many switches."""
        self._num_digests = 0
        self._num_scores = 0
        self._num_finished = 0
        self._num_refused = 0
        self._tokens_answered = 0
        self._tokens_unheard = 0
        self._unheard: set[str] = set()
        """Requests in flight whose askers died."""
        self._now_s = 0.0

    def start(self, now_s: float) -> list[Effect]:
        """Ask for weights."""
        self._now_s = now_s
        if not self._publisher:
            return []
        return [Tell(self._publisher, EngineReady(engine=self._name))]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        self._now_s = now_s
        match event:
            case Received(source, message, request):
                effects = self._received(source, message, request)
            case WorkDone(key, result, error) if key == OUTCOMES:
                effects = self._ended(result, error)
            case WorkDone(key, result, error) if key in self._digests:
                effects = [self._digested(key, result, error)]
            case WorkDone(key, result, error):
                effects = self._epochs.done(key, result, error)
            case Taken(key):
                effects = self._parts.taken(key)
            case Unanswered(key):
                # An asker that is gone hears no more; a publisher asks when it is back.
                self._parts.drop(key)
                effects = []
            case _:
                effects = []
        return effects + self._drained()

    def validate(self) -> None:
        """Assert every invariant."""
        self._epochs.validate()
        assert len(self._in_flight) <= self._requests_max, "EN-4: more requests than the limit"
        assert self._epochs.version is not None or not self._in_flight, (
            "EN-3: a request is in flight before any version serves"
        )

    def statistics(self) -> dict[str, object]:
        """Numbers for the heartbeat."""
        return {
            "serving": self._epochs.version,
            "requests_in_flight": len(self._in_flight),
            "requests_finished": self._num_finished,
            "requests_refused": self._num_refused,
            "weights_activated": self._epochs.num_activated,
            "last_pause_s": self._epochs.last_pause_s,
            "tokens_answered": self._tokens_answered,
            "accounts_untold": {"unheard": self._tokens_unheard} if self._tokens_unheard else {},
        }

    def working_on(self) -> str:
        """Versions and requests, with the age of the oldest."""
        text = str(self._epochs)
        if not self._in_flight:
            return f"{text}, waits for requests"
        oldest_id, oldest = min(self._in_flight.items(), key=lambda item: item[1].since_s)
        age_s = self._now_s - oldest.since_s
        return f"{text}, {len(self._in_flight)} requests, oldest {oldest_id} for {age_s:.1f} s"

    # ---- messages ------------------------------------------------------------------------

    def _received(self, source: str, message: Message, request: Request | None) -> list[Effect]:
        match message:
            case AbortRequests():
                return [AbortOrder("abort", message.request_ids, message.session_ids)]
            case ForgetSessions():
                return [ForgetOrder("forget", message.session_ids)]
            case AbortEpoch():
                return self._epochs.abort(message, request)
            case PeerRestarted():
                return self._peer_restarted(message.actor)
        assert request is not None, f"{source} told {type(message).__name__}, it must be asked"
        match message:
            case Generate():
                return self._generate(message, request)
            case Score():
                return self._score(message, request)
            case PrepareEpoch():
                return self._epochs.prepare(message, request)
            case WeightBucket():
                return self._epochs.bucket(message, request)
            case CopyBucket():
                return self._epochs.copy(message, request)
            case PullVersion():
                return self._epochs.pull(message, request)
            case ReceiveVersion():
                return self._epochs.receive(message, request)
            case ActivateEpoch():
                return self._epochs.activate(message, request)
            case DigestTensors():
                return self._digest(message, request)
            case Drain():
                self._drains.append(request)
                return []
            case _:
                raise TypeError(f"{self._name} was told {type(message).__name__} by {source}")

    def _generate(self, message: Generate, request: Request) -> list[Effect]:
        request_id = message.request_id
        if busy := self._unready(message.version_min):
            return [self._refuse(request, request_id, busy, retry=True)]
        if request_id in self._in_flight:
            reason = f"request {request_id} is in flight already"
            return [self._refuse(request, request_id, reason, retry=False)]
        fault = _row_fault(message.token_ids) or self._routes_fault(message)
        if fault := fault or self._adapter_fault(message):
            return [self._refuse(request, request_id, fault, retry=False)]
        self._in_flight[request_id] = _InFlight(request, request_id, self._now_s)
        if message.stream:
            self._parts.open(request_id, request.source)
        return [
            GenerateOrder(
                request_id,
                message.session_id,
                from_bulk(message.token_ids),
                message.sampling,
                message.stream,
                message.rank,
                message.routes_start,
                message.adapter,
            )
        ]

    def _adapter_fault(self, message: Generate) -> str:
        known = self._facts.adapters
        if not message.adapter or message.adapter in known:
            return ""
        has = f"it has {', '.join(known)}" if known else "it has none"
        return f'{self._name} has no adapter "{message.adapter}", {has}'

    def _routes_fault(self, message: Generate) -> str:
        start, length = message.routes_start, message.token_ids.shape[0]
        if start is None:
            return ""
        if not self._facts.returns_routes:
            return f"{self._name} was not started to keep routes, algorithm.replay_routes is off"
        if start >= length:
            return f"routes from token {start} on are wanted of a prompt of {length} tokens"
        return ""

    def _score(self, message: Score, request: Request) -> list[Effect]:
        if busy := self._unready(0):
            return [self._refuse(request, "", busy, retry=True)]
        for row in message.rows:
            if fault := _row_fault(row):
                return [self._refuse(request, "", fault, retry=False)]
        self._num_scores += 1
        key = f"score/{self._num_scores}"
        self._in_flight[key] = _InFlight(request, "", self._now_s)
        rows = tuple(from_bulk(row) for row in message.rows)
        return [ScoreOrder(key, rows, message.temperature, message.use_cache)]

    def _digest(self, message: DigestTensors, request: Request) -> list[Effect]:
        version = self._epochs.version
        unknown = [name for name in message.names if not self._epochs.has_tensor(name)]
        if version is None or unknown:
            why = f"{self._name} serves no version yet" if version is None else ""
            why = why or f"{self._name} has no tensor {unknown[0]}"
            return [self._refuse(request, "", why, retry=False)]
        if self._epochs.is_switching:
            return [self._changes(request)]
        self._num_digests += 1
        key = f"digests/{self._num_digests}"
        self._digests[key] = (request, version, self._epochs.num_activated)
        return [ReadDigests(key, message.names)]

    def _digested(self, key: str, result: object, error: str) -> Reply:
        request, version, num_activated = self._digests.pop(key)
        if self._epochs.is_switching or self._epochs.num_activated != num_activated:
            return self._changes(request)
        if not isinstance(result, tuple):
            return self._refuse(request, "", f"tensors cannot be read back: {error}", retry=False)
        return Reply(request, TensorDigests(version=version, digests=result))

    def _changes(self, request: Request) -> Reply:
        """Nobody here can tell whether the old or the new weights are read."""
        return self._refuse(request, "", f"{self._name} changes its version", retry=True)

    def _unready(self, version_min: int) -> str:
        """Why nothing can be computed now; empty when it can."""
        version = self._epochs.version
        if version is None:
            return f"{self._name} serves no version yet"
        if version < version_min:
            return f"{self._name} serves version {version}, at least {version_min} is asked for"
        if len(self._in_flight) >= self._requests_max:
            return f"{self._name} has {self._requests_max} requests in flight, its limit"
        return ""

    def _peer_restarted(self, actor: str) -> list[Effect]:
        """Nobody waits for the answers of a process that died."""
        lost = [key for key, entry in self._in_flight.items() if entry.request.source == actor]
        self._unheard.update(lost)
        effects: list[Effect] = [AbortOrder("abort", tuple(lost))] if lost else []
        if actor == self._publisher:
            effects += self._epochs.forget()
        return effects

    # ---- outcomes ------------------------------------------------------------------------

    def _ended(self, result: object, error: str) -> list[Effect]:
        if error:
            return [Fail(f"{self._name} stopped computing: {error}")]
        assert isinstance(result, tuple), f"outcomes are {type(result).__name__}"
        effects: list[Effect] = []
        for outcome in result:
            if isinstance(outcome, Progress):
                effects += self._parts.sampled(outcome.key, outcome.token_ids)
            else:
                effects.append(self._answer(outcome))
        return effects

    def _answer(self, outcome: Finished | ScoreFinished | Rejected) -> Reply:
        entry = self._in_flight.pop(outcome.key)
        self._parts.close(outcome.key)
        self._num_finished += 1
        is_unheard = outcome.key in self._unheard
        self._unheard.discard(outcome.key)
        match outcome:
            case Finished():
                count = len(outcome.token_ids)
                self._tokens_answered += count
                self._tokens_unheard += count if is_unheard else 0
                return Reply(entry.request, self._generated(outcome))
            case ScoreFinished(_, logprobs, version):
                rows = tuple(to_bulk(row) for row in logprobs)
                return Reply(entry.request, Scored(logprobs=rows, version=version))
            case Rejected(_, reason):
                self._num_finished -= 1
                return self._refuse(entry.request, entry.request_id, reason, retry=False)

    def _generated(self, outcome: Finished) -> Generated:
        top_ids, top_logprobs = outcome.top_token_ids, outcome.top_logprobs
        return Generated(
            request_id=outcome.key,
            token_ids=to_bulk(outcome.token_ids),
            logprobs=to_bulk(outcome.logprobs),
            spans=outcome.spans,
            finish_reason=outcome.finish_reason,
            cached_tokens=outcome.cached_tokens,
            top_token_ids=None if top_ids is None else to_bulk(top_ids),
            top_logprobs=None if top_logprobs is None else to_bulk(top_logprobs),
            routes=None if outcome.routes is None else to_bulk(outcome.routes),
            incarnation=self._incarnation,
            weights=self._epochs.weights_used(outcome.spans, outcome.kv_versions),
        )

    def _refuse(self, request: Request, request_id: str, reason: str, *, retry: bool) -> Reply:
        self._num_refused += 1
        return Reply(request, GenerateRefused(request_id=request_id, reason=reason, retry=retry))

    def _drained(self) -> list[Effect]:
        if self._in_flight or self._epochs.is_switching:
            return []
        drains, self._drains = self._drains, []
        return [Reply(request, Drained(actor=self._name)) for request in drains]


def _row_fault(row: Bulk) -> str:
    if row.dtype != "int32" or len(row.shape) != 1:
        return f"token ids are {row}, int32 [T] is expected"
    return ""
