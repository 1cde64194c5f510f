"""What a bus tells of itself: frozen, documented, cheap to take; heartbeats carry it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxStatistics:
    """The inbox of one actor."""

    depth: int
    """Messages that arrived and were not taken."""
    max: int
    """Depth at which the socket is not read any more."""
    peak: int
    """Largest depth so far."""
    oldest_age_s: float
    """How long the message at the head has been waiting; 0 when there is none."""
    paused: bool
    """The socket is not read: senders fill up and wait."""
    senders: int
    """Links that lead here."""
    blocked_senders: int
    """Links whose whole window lies here, not taken."""
    received: int
    """Messages put into the inbox, each once."""
    handled: int
    """Messages handed to the actor."""
    duplicates: int
    """Repeats that were dropped by their number."""
    gaps: int
    """Times that something was missing and asked for again."""
    skipped: int
    """Messages their sender gave up before they were taken."""
    refused: int
    """Messages that could not be read; their sender was told."""
    junk: int
    """What was no message at all, and was dropped."""
    strangers: int
    """tcp only: connections that did not prove a key of the run, or have not yet."""
    replies_unacked: int
    """Answers that their asker has not acknowledged yet."""
    reply_retries: int
    """Answers sent again."""
    unroutable: int
    """Frames for a sender that was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """The way to one peer."""

    peer: str
    incarnation: int
    """Of the peer; -1 when it was never heard."""
    problem: str
    """Why there is no connection; empty when there is one."""
    depth: int
    """Messages that wait for room in the window."""
    max: int
    """Depth at which further messages fail."""
    peak: int
    """Largest depth so far."""
    unacked: int
    """Messages sent and not known to be taken."""
    window: int
    """Most messages that may be so."""
    unanswered: int
    """Questions without an answer yet."""
    oldest_age_s: float
    """How long the oldest message waits for being taken, or for its answer."""
    silence_s: float
    """Since the peer was last heard; -1 when never."""
    sent: int
    """Messages sent, each once."""
    retries: int
    """Messages sent again."""
    duplicates: int
    """Answers that came twice."""
    late_answers: int
    """Answers that came after the question had been given up."""
    failed: int
    """Messages whose sender was told that they were not delivered or not answered."""
    restarts: int
    """New incarnations of the peer met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDelay:
    """How late the event loop of the process wakes up, over the last minute."""

    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """Shared memory of this process."""

    segments_bytes: int
    """Of all segments written here that exist."""
    loans: int
    """Messages whose receiver still reads its segment."""
    mapped: int
    """Segments of other processes read here."""
    without_room: int
    """Messages sent as frames because the host had no shared memory left."""
    allocated_bytes: int
    """Of segments that payloads were made in and are in use, here or with receivers."""
    allocated_max: int
    """Beyond it payloads are made in ordinary memory."""
    allocated_elsewhere: int
    """Payloads that were, for want of room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusStatistics:
    """All of it."""

    name: str
    incarnation: int
    mailbox: MailboxStatistics
    links: tuple[LinkStatistics, ...]
    loop: LoopDelay
    memory: MemoryStatistics
    failed_inside: int
    """Messages that could not be packed or read for a reason nobody expects; the log has each, and
    whoever waited was told."""
