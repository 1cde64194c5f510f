"""A session core with a small ChatML tokenizer, and a hand to play clients and engines with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Wake,
    Work,
    WorkDone,
)
from milepost.actors.routes import RoutesShape
from milepost.actors.session.core import SessionCore
from milepost.actors.session.desk import Desk
from milepost.actors.session.engines import EnginePool
from milepost.actors.session.families import make_family
from milepost.actors.session.record import LinearRecord
from milepost.actors.session.run import record_maker, row_rules
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import load_template
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.configs.actors import SessionConfig, TreeConfig
from milepost.configs.recipes.lookup.clerk import demonstrations
from milepost.configs.recipes.lookup.directory import VALUES
from milepost.configs.recipes.tiny.tokenizer import render, train_tokenizer, write_tokenizer
from milepost.messages.bulk import Bulk
from milepost.messages.engine import AbortRequests, Generate, Generated
from milepost.messages.session import (
    ChatRefused,
    ChatTurn,
    FinishTrajectory,
    OpenSessions,
    SessionSpec,
)
from milepost.messages.shared import (
    ChatMessage,
    EpisodeLimits,
    FinishReason,
    Message,
    Purpose,
    SamplingParams,
    Status,
    VersionSpan,
    WeightsUsed,
)

STOP = "<|im_end|>"
ROUTES = RoutesShape(num_layers=2, experts_per_token=2, num_experts=8)
"""Of the mixture that engines serve whose routes are replayed."""
LOOKUP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a field up.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "field": {"type": "string"}},
        },
    },
}
CALL_TEXT = (
    '<tool_call>\n{"name": "lookup", "arguments": {"name": "kai", "field": "pet"}}\n</tool_call>'
)
QUESTION: ChatMessage = {"role": "user", "content": "What is the pet of kai?"}


@cache
def renderer() -> Renderer:
    """Of the look-up task's tokenizer and template, under family qwen3."""
    texts = [render(prompt) for prompt in islice(demonstrations("train", 0, {}), 100)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder, train_tokenizer(texts, VALUES, size=360), context_tokens_max=1024)
        tokenizer = load_tokenizer(folder)
        template = load_template(folder, named_tokens=tokenizer.named_tokens)
    return Renderer(tokenizer, template, make_family("qwen3", tokenizer))


def tool_result(content: str, call_id: str = "call_1_0") -> ChatMessage:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@dataclass
class Play:
    """Clients and engines in one hand; messages that left the core lie in `told`."""

    core: SessionCore
    desk: Desk
    now_s: float = 0.0
    told: list[Tell] = field(default_factory=list)
    asks: dict[str, Ask] = field(default_factory=dict)
    """Open questions to engines, by key."""
    replies: dict[Request, Message] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    _message_id: int = 0

    def feed(self, effects: list[Effect]) -> None:
        """Keep what the core ordered."""
        for effect in effects:
            match effect:
                case Tell():
                    self.told.append(effect)
                case Ask():
                    assert effect.key not in self.asks
                    self.asks[effect.key] = effect
                case Reply():
                    assert effect.request not in self.replies, "SE-4 (one answer)"
                    self.replies[effect.request] = effect.message
                case Wake():
                    self.wakes[effect.key] = effect.at_s
                case Work():
                    self.works[effect.key] = effect
                case _:
                    raise AssertionError(effect)

    def handle(self, event: Any) -> None:
        """Give the core an event; the whole state is validated after it."""
        self.feed(self.core.handle(event, self.now_s))
        self.core.validate()

    def ask(self, message: Message, source: str = "agent-0") -> Request:
        """Ask the core something."""
        self._message_id += 1
        request = Request(source, self._message_id)
        self.handle(Received(source, message, request))
        return request

    def tell(self, message: Message, source: str) -> None:
        """Tell the core something."""
        self.handle(Received(source, message))

    def open(self, trajectory_id: str = "g.0", **fields: Any) -> Request:
        """Open a session."""
        return self.ask(OpenSessions(sessions=(spec(trajectory_id, **fields),)), "rollout")

    def chat(
        self, messages: list[ChatMessage], trajectory_id: str = "g.0", **fields: Any
    ) -> Request:
        """Ask for a reply."""
        fields.setdefault("tools", [LOOKUP])
        return self.ask(ChatTurn(trajectory_id=trajectory_id, messages=messages, **fields))

    def open_ask(self) -> tuple[str, Ask, Generate]:
        """The oldest open question to an engine."""
        key, ask = next(iter(self.asks.items()))
        assert isinstance(ask.message, Generate)
        return key, ask, ask.message

    def sample(self, text: str, **fields: Any) -> Generated:
        """Answer the oldest open question; the reply ends with the stop token unless told."""
        key, ask, request = self.open_ask()
        del self.asks[key]
        generated = reply_to(request, text, **fields)
        self.handle(Answered(key, ask.to, generated))
        return generated

    def turn(self, messages: list[ChatMessage], text: str, **fields: Any) -> ChatMessage:
        """One whole turn; the assistant's message."""
        request = self.chat(messages)
        self.sample(text, **fields)
        answer: Any = self.replies[request]
        message: ChatMessage = answer.message
        return message

    def finish(self, trajectory_id: str = "g.0", **fields: Any) -> Request:
        """Give the verdict."""
        fields = {"attempt": 0, "status": Status.COMPLETED, "reward": 1.0, **fields}
        verdict = FinishTrajectory(trajectory_id=trajectory_id, **fields)
        return self.ask(verdict, "rollout")

    def take(self) -> Any:
        """The destination takes the newest delivery."""
        delivery = [tell for tell in self.told if tell.confirm][-1]
        self.handle(Taken(delivery.key))
        return delivery.message

    def work(self) -> None:
        """A thread does the oldest work."""
        key, work = next(iter(self.works.items()))
        del self.works[key]
        done: Any = work
        self.handle(WorkDone(key, done.carry_out(self.desk.renderer)))


def play(
    *,
    engines: tuple[str, ...] = ("engine-0",),
    matcher: str = "strict",
    sessions_max: int = 64,
    context_tokens_max: int = 4096,
    of: Renderer | None = None,
    tree: TreeConfig | None = None,
    routes: RoutesShape | None = None,
) -> Play:
    """A fresh core; its histories branch when `tree` is given."""
    config = SessionConfig(
        history="tree" if tree else "linear", tree=tree or TreeConfig(), matcher=matcher
    )
    desk = Desk(
        name="session-0",
        renderer=of or renderer(),
        pool=EnginePool(engines),
        context_tokens_max=context_tokens_max,
        patience_s=10.0,
        rules=row_rules(config),
        routes=routes,
    )
    core = SessionCore(desk, new_record=record_maker(config), sessions_max=sessions_max)
    return Play(core, desk)


def spec(trajectory_id: str = "g.0", **fields: Any) -> SessionSpec:
    """A session to open."""
    fields = {
        "group_id": "g",
        "prompt_id": "p",
        "attempt": 0,
        "group_size": 1,
        "sampling": SamplingParams(tokens_max=64, seed=7),
        "limits": EpisodeLimits(),
        "purpose": Purpose.TRAIN,
        "deliver_to": "buffer",
        **fields,
    }
    return SessionSpec(trajectory_id=trajectory_id, **fields)


def weights_used(spans: Sequence[VersionSpan]) -> tuple[WeightsUsed, ...]:
    """What an engine says of the versions of these spans: it computed every cache anew."""
    return tuple(
        WeightsUsed(version=version, digest=digest_of(version), kv_version=version)
        for version in dict.fromkeys(span.version for span in spans)
    )


def digest_of(version: int) -> str:
    """Of the weights of a version of the tests."""
    return f"digest of {version}"


def reply_to(
    request: Generate,
    text: str,
    *,
    finish_reason: FinishReason = FinishReason.STOP,
    versions: tuple[int, ...] = (3,),
    **fields: Any,
) -> Generated:
    """What an engine would answer; with several versions, each but the last samples one token."""
    stop = STOP if finish_reason is FinishReason.STOP else ""
    token_ids = renderer().tokenizer.encode(text + stop)
    logprobs = -np.arange(1, len(token_ids) + 1, dtype=np.float32) / 16
    cuts = [*range(len(versions)), len(token_ids)]
    spans = tuple(
        VersionSpan(start=start, end=end, version=version)
        for (start, end), version in zip(pairwise(cuts), versions, strict=True)
    )
    if request.routes_start is not None and finish_reason is not FinishReason.ABORT:
        fields = {"routes": routes_of(request, len(token_ids)), **fields}
    return Generated(
        **{
            "request_id": request.request_id,
            "token_ids": to_bulk(token_ids),
            "logprobs": to_bulk(logprobs),
            "spans": spans,
            "weights": weights_used(spans),
            "finish_reason": finish_reason,
            "cached_tokens": 0,
            **fields,
        }
    )


def routes_of(request: Generate, num_sampled: int) -> Bulk:
    """What an engine would tell of this request: every pass of it through experts of its own."""
    assert request.routes_start is not None
    end = request.token_ids.shape[0] + num_sampled - 1
    sizes = (end - request.routes_start, ROUTES.num_layers, ROUTES.experts_per_token)
    seed = [*request.request_id.encode()]
    chosen = np.random.default_rng(seed).integers(0, ROUTES.num_experts, sizes)
    return to_bulk(chosen.astype(ROUTES.dtype))


def ids(bulk: Any) -> list[int]:
    """Token ids of a bulk."""
    return [int(token) for token in from_bulk(bulk)]


def text_of(bulk: Any) -> str:
    """Their text."""
    return renderer().tokenizer.decode(ids(bulk))


def aborts(game: Play) -> list[str]:
    """Requests that engines were told to stop."""
    return [
        name
        for tell in game.told
        if isinstance(tell.message, AbortRequests)
        for name in tell.message.request_ids
    ]


def row_of(core: SessionCore, trajectory_id: str = "g.0") -> Any:
    """The row of an open session."""
    record = core._sessions[trajectory_id].record
    assert isinstance(record, LinearRecord)
    return record.row


def refused(game: Play, request: Request, kind: str) -> str:
    """The reason of a refusal of this kind."""
    answer = game.replies[request]
    assert isinstance(answer, ChatRefused), answer
    assert answer.kind == kind, answer
    return answer.reason
