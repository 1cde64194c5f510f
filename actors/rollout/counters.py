"""What the rollout actor counts of episodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FlightCounters:
    """Totals since the process started, for the waste statement and the monitor."""

    episodes_ended: int = 0
    episodes_failed: int = 0
    episodes_lost: int = 0
    episodes_retried: int = 0
    groups_given_up: int = 0
    """Groups dropped since one of their episodes failed or was lost too often."""
    groups_made_smaller: int = 0
    """Members that failed and were left out of their group (`failed = "smaller_group"`)."""
    siblings_abandoned: int = 0
    late_duplicates: int = 0
    leases_expired: int = 0
    tokens_delivered: int = 0
    tokens_sampled: int = 0
    turns_failed: int = 0
    """Turns of failed episodes: generated, never trained."""
