"""Gathers the statistics of one bus."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.messages.bus.host import Host
from milepost.messages.bus.mailbox import Mailbox
from milepost.messages.bus.outbound import Outbound
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.statistics import (
    BusStatistics,
    LinkStatistics,
    LoopDelay,
    MailboxStatistics,
    MemoryStatistics,
)


def report(
    host: Host,
    mailbox: Mailbox,
    links: Mapping[str, Outbound],
    packing: Packing,
    loop: LoopDelay,
    num_failed: int,
) -> BusStatistics:
    """Everything at this moment."""
    now = host.clock()
    return BusStatistics(
        name=host.name,
        incarnation=host.incarnation,
        mailbox=_mailbox(host, mailbox, now),
        links=tuple(_link(host, links[peer], now) for peer in sorted(links)),
        loop=loop,
        memory=MemoryStatistics(
            segments_bytes=packing.lender.segments.num_bytes,
            loans=len(packing.lender.loans),
            mapped=packing.borrower.num_mapped,
            without_room=packing.num_without_room,
            allocated_bytes=packing.lender.segments.held_bytes,
            allocated_max=host.limits.allocated_bytes_max,
            allocated_elsewhere=packing.allotments.num_elsewhere,
        ),
        failed_inside=num_failed,
    )


def _mailbox(host: Host, mailbox: Mailbox, now: float) -> MailboxStatistics:
    head = mailbox.head()
    window = host.limits.window_messages
    return MailboxStatistics(
        depth=len(mailbox.entries),
        max=host.limits.inbox_messages_max,
        peak=mailbox.peak,
        oldest_age_s=now - head.arrived if head is not None else 0.0,
        paused=mailbox.paused,
        senders=len(mailbox.sources),
        blocked_senders=sum(len(one.untaken) >= window for one in mailbox.sources.values()),
        received=mailbox.num_received,
        handled=mailbox.num_taken - mailbox.num_refused,
        duplicates=mailbox.num_duplicates,
        gaps=mailbox.num_gaps,
        skipped=mailbox.num_skipped,
        refused=mailbox.num_refused,
        junk=mailbox.num_junk + host.transport.num_oversized,
        strangers=host.transport.num_strangers,
        replies_unacked=sum(len(one.replies) for one in mailbox.replies.owing.values()),
        reply_retries=mailbox.replies.num_retries,
        unroutable=mailbox.replies.num_unroutable,
    )


def _link(host: Host, link: Outbound, now: float) -> LinkStatistics:
    created = [group[0].created for group in (link.waiting, link.unacked) if group]
    created += [sent.created for sent in link.asks.values()]
    return LinkStatistics(
        peer=link.peer,
        incarnation=link.peer_incarnation,
        problem=link.problem,
        depth=len(link.waiting),
        max=host.limits.outbox_messages_max,
        peak=link.peak,
        unacked=len(link.unacked),
        window=host.limits.window_messages,
        unanswered=len(link.asks),
        oldest_age_s=now - min(created, default=now),
        silence_s=now - link.last_heard if link.last_heard else -1.0,
        sent=link.num_sent,
        retries=link.num_retries,
        duplicates=link.answers.num_duplicates,
        late_answers=link.num_late,
        failed=link.num_failed,
        restarts=link.num_restarts,
    )
