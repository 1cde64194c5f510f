"""Sessions as things: opened, looked at, sampled from, deleted; and prompts counted."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from msgspec import Meta, Raw
from msgspec.structs import replace

from milepost.actors.session.http.answers import JSON, NO_RETRY, error, refusal
from milepost.actors.session.http.branches import copies_of, tree_of
from milepost.actors.session.http.dialect import encode
from milepost.actors.session.http.dialects import DIALECTS
from milepost.actors.session.http.fields import Fields
from milepost.actors.session.http.records import records_of
from milepost.actors.session.http.samples import NoSamples, encode_samples, session_metadata
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.text.template import RenderFailed
from milepost.actors.session.validation import check_messages, check_tools
from milepost.configs.seeds import derive_seed
from milepost.messages.session import AbandonTrajectory, OpenSessions, SessionSpec, SessionsRefused
from milepost.messages.shared import Purpose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from milepost.actors.session.http.door import Door
    from milepost.actors.session.http.models import Models
    from milepost.actors.session.http.service import Chats
    from milepost.actors.session.leaves import LeafRules
    from milepost.actors.session.state import Session
    from milepost.actors.session.text.rendering import Renderer
    from milepost.messages.shared import EpisodeLimits, SamplingParams

Bound = Annotated[int, Meta(ge=1)]


class FreeSessions:
    """How sessions are made that belong to no episode.

    Args:
        allowed: whether clients may open them.
        key: what they must send for it; empty: nothing.
        sampling: of the run.
        limits: of the run.
    """

    def __init__(
        self, *, allowed: bool, key: str, sampling: SamplingParams, limits: EpisodeLimits
    ) -> None:
        self.allowed = allowed
        self._key = key.encode()
        self._sampling = sampling
        self._limits = limits

    def admits(self, request: web.BaseRequest) -> bool:
        """Whether this client may open one."""
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        sent = request.headers.get("x-api-key") or (bearer if scheme.lower() == "bearer" else "")
        # Headers may hold bytes that are no text.
        given = sent.strip().encode(errors="surrogateescape")
        return not self._key or hmac.compare_digest(given, self._key)

    def new(self) -> SessionSpec:
        """One more; its id is its secret."""
        name = secrets.token_hex(16)
        seed = derive_seed(self._sampling.seed, "free session", name)
        return SessionSpec(
            trajectory_id=name,
            group_id=name,
            prompt_id="",
            attempt=0,
            group_size=1,
            sampling=replace(self._sampling, seed=seed),
            limits=self._limits,
            purpose=Purpose.EVALUATE,
            deliver_to="",
        )


class Lifecycle:
    """See the module.

    Args:
        door: to the core.
        chats: reads requests.
        renderer: of the run's model.
        rules: which branches become samples.
        models: names that clients see.
        free: how sessions without an episode are made.
        aside: calls a function in a thread.
    """

    def __init__(
        self,
        door: Door,
        chats: Chats,
        renderer: Renderer,
        rules: LeafRules,
        *,
        models: Models,
        free: FreeSessions,
        aside: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._door = door
        self._chats = chats
        self._renderer = renderer
        self._rules = rules
        self._models = models
        self._free = free
        self._aside = aside

    async def opened(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """`POST /sessions`."""
        if not self._free.allowed:
            return error(403, "this run opens no sessions for clients (http.free_sessions)")
        if not self._free.admits(request):
            return error(401, "the key of http.key_file is needed to open a session")
        if body.strip() not in (b"", b"{}", b"null"):
            return error(400, "POST /sessions takes no body: a session is the run's to set up")
        spec = self._free.new()
        answer = await self._door.ask(OpenSessions(sessions=(spec,))).answer
        if isinstance(answer, SessionsRefused):
            return error(503, answer.reason, {"Retry-After": "1"})
        return _json({"session_id": spec.trajectory_id})

    async def told(self, key: str, session: Session) -> web.Response:
        """`GET /sessions/{id}`."""
        is_tree = session.record.takes_parallel
        later, answers = session.record.later(), self._chats.answers(session)

        def tell() -> bytes:
            branches = copies_of(later())
            records = Raw(records_of(branches, answers))
            metadata = session_metadata(branches, self._renderer)
            if is_tree:
                metadata["tree"] = tree_of(branches, answers)
            return encode({"session_id": key, "records": records, "metadata": metadata})

        return web.Response(body=await self._aside(tell), content_type=JSON)

    async def deleted(self, session: Session) -> web.Response:
        """`DELETE /sessions/{id}`."""
        spec = session.spec
        if not session.is_free:
            return error(409, f"{spec.trajectory_id} is the run's: its verdict ends it", NO_RETRY)
        order = AbandonTrajectory(
            trajectory_id=spec.trajectory_id, attempt=spec.attempt, reason="its client deleted it"
        )
        await self._door.ask(order).answer
        return web.Response(status=204)

    async def samples(self, session: Session, body: bytes) -> web.Response:
        """`POST /sessions/{id}/samples`."""
        try:
            fields = Fields(body.strip() or b"{}")
            length_max = fields.take("max_seq_len", Bound)
            metadata = fields.take("metadata", dict[str, Any]) or {}
            fields.done()
        except TurnRefused as refused:
            return error(400, str(refused))
        later = session.record.later()

        def make() -> bytes:
            return encode_samples(
                copies_of(later()),
                self._renderer,
                rules=self._rules,
                length_max=length_max,
                metadata=metadata,
            )

        try:
            made = await self._aside(make)
        except NoSamples as reason:
            return web.Response(text=str(reason), status=422)
        return web.Response(body=made, content_type="application/octet-stream")

    async def counted(self, session: Session, body: bytes) -> web.Response:
        """`POST /sessions/{id}/v1/messages/count_tokens`: of the conversation rendered whole."""
        dialect = DIALECTS["messages"]
        try:
            asked = self._chats.read(session, "messages", (body,))
            check_tools(asked.tools)
            text = self._renderer.first(check_messages(asked.messages), asked.tools)
            piece = self._renderer.recall(text)
            if piece is None:
                piece = await self._aside(lambda: self._renderer.render(text))
        except RenderFailed as failed:
            return refusal(dialect, TurnRefused("bad_request", str(failed)).message())
        except TurnRefused as refused:
            return refusal(dialect, refused.message())
        return _json({"input_tokens": len(piece.token_ids)})

    def models(self, session: Session) -> web.Response:
        """`GET /sessions/{id}/v1/models`: the policy, and adapters where they may be named."""
        listed = self._models.listed(with_adapters=not session.is_trained)
        return _json({"object": "list", "data": listed})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=encode(value), content_type=JSON)
