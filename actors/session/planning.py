"""What a turn will be, before an engine hears of it; nothing of its session changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from milepost.actors.session.doors import DoorTurn
from milepost.actors.session.families.calls import greatest_number
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.state import Flight, Session
from milepost.actors.session.validation import check_messages, check_tools
from milepost.configs.seeds import derive_seed

if TYPE_CHECKING:
    from milepost.actors.effects import Request
    from milepost.actors.session.desk import Desk
    from milepost.messages.session import ChatTurn

FLIGHTS_MAX: Final = 16
"""Requests of one linear session before they are answered: the newest one that can be served takes
the place of the others."""


def planned(desk: Desk, session: Session, turn: ChatTurn, request: Request, now_s: float) -> Flight:
    """The turn that a request asks for.

    Raises:
        TurnRefused: it cannot be.
    """
    spec = session.spec
    if turn.attempt is not None and turn.attempt != spec.attempt:
        raise TurnRefused(
            "closed",
            f"session {spec.trajectory_id} is open for attempt {spec.attempt}, the request is "
            f"of attempt {turn.attempt}",
        )
    if not session.record.takes_parallel and len(session.flights) >= FLIGHTS_MAX:
        # Each would wait for a thread, with its text. A tree bounds its nodes.
        raise TurnRefused(
            "bad_request",
            f"{len(session.flights)} requests of session {spec.trajectory_id} are open, and only "
            "one of them can go on: wait for an answer",
        )
    check_tools(turn.tools)
    desk.check_adapter(session, turn.adapter)
    # The door has checked each message when it was new.
    is_checked = isinstance(turn, DoorTurn) and bool(turn.messages)
    messages = turn.messages
    if not is_checked:
        messages = check_messages(messages, session.record.known)
    in_flight = [one.plan for one in session.flights.values()]
    plan = session.record.plan(messages, turn.tools, in_flight=in_flight)
    if session.record.takes_parallel and any(one.parent == plan.parent for one in in_flight):
        plan = replace(plan, is_retry=True)
    if plan.base_turns >= spec.limits.turns_max:
        raise TurnRefused(
            "limit",
            f"{plan.base_turns} turns were generated, turns_max is {spec.limits.turns_max}",
            limit="turns_max",
            parent=plan.parent,
        )
    flight = Flight(request, session.epoch + 1, plan, turn.tokens_max, now_s)
    flight.call_number = max(session.call_number, greatest_number(plan.appended)) + 1
    flight.number, flight.stream_name, flight.adapter = turn.number, turn.stream, turn.adapter
    return flight


def measure(desk: Desk, session: Session, flight: Flight) -> None:
    """Bound the reply of a rendered turn: every limit, and the name of the one that counts.

    Raises:
        TurnRefused: kind `limit`, there is no room for a reply.
    """
    assert flight.piece is not None
    limits, sampling = session.spec.limits, session.spec.sampling
    base = session.record.base_length(flight.plan)
    seam = len(flight.seam.insert) - flight.seam.drop
    flight.prompt_tokens = base + seam + len(flight.piece.token_ids)
    flight.routes = desk.routes_wanted(session, flight, base)
    whole, name = limits.tokens_max, "tokens_max"
    if desk.context_tokens_max < whole:
        whole, name = desk.context_tokens_max, "context_tokens_max"
    room = whole - flight.prompt_tokens
    if room < 1:
        raise TurnRefused(
            "limit",
            f"the prompt of turn {flight.plan.base_turns + 1} has {flight.prompt_tokens} "
            f"tokens, {name} is {whole}: no room for a reply",
            limit=name,
            parent=flight.plan.parent,
        )
    ours = min(limits.reply_tokens_max, sampling.tokens_max)
    asked = flight.tokens_max or room
    reply = min(ours, asked)
    if room <= reply:
        flight.bound = name
    else:
        # A client that keeps its reply shorter than the run would has reached no bound of it.
        flight.bound = "reply_tokens_max" if ours <= asked else ""
    seed = sampling.seed
    if flight.plan.is_retry:
        # The same seed at the same place would only say the same again.
        seed = derive_seed(seed, "retry", flight.epoch)
    flight.sampling = replace(sampling, tokens_max=min(room, reply), seed=seed)
