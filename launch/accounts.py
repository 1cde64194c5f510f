"""Where every prompt group and every sampled token of a run is: the tables of `milepost account`.

    issued = trained + dropped (by reason) + open + stored
    sampled = trained + evaluated + wasted (by account) + held by the buffer + under way

Both are of the whole run, over restarts and resumes: the buffer's journal keeps them. What died
with a process is in `lost_with_ACTOR`, by its last heartbeat, and what a resume left behind in
`lost_at_resume`. `under_way` is what actors hold that nobody else knows of yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from milepost.launch.tables import LEFT, RIGHT, seconds, table

USED = frozenset({"trained", "evaluated", "probed"})
"""Accounts of tokens that somebody had a use for."""


class Account(Struct, frozen=True, kw_only=True):
    """The books of one run at one moment."""

    issued: int
    trained: int
    dropped: dict[str, int]
    open: int
    """Groups that are being sampled."""
    stored: int
    """Groups that are whole in the buffer."""
    owners: dict[str, dict[str, float]] = {}
    """Who has the members that are not delivered: how many, and since when the oldest."""
    tokens: dict[str, int] = {}
    """Account -> sampled tokens; with `held` by the buffer and `under_way`."""

    @property
    def balance(self) -> int:
        """Groups issued that nobody can account for: 0, or the run has lost or doubled some."""
        return self.issued - self.trained - sum(self.dropped.values()) - self.open - self.stored


def account_of(statistics: Mapping[str, Mapping[str, Any]]) -> Account | None:
    """The books, from each actor's own statistics, by name; None without a rollout actor."""
    rollout = statistics.get("rollout", {})
    if "issued" not in rollout:
        return None
    return Account(
        issued=rollout["issued"],
        trained=rollout["trained"],
        dropped=rollout["dropped"],
        open=rollout["open"],
        stored=rollout["stored"],
        owners=rollout.get("owners", {}),
        tokens=_tokens(statistics),
    )


def _tokens(statistics: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    buffer = statistics.get("buffer", {})
    tokens: Counter[str] = Counter(buffer.get("tokens_by_account", {}))
    for each in statistics.values():
        tokens.update(each.get("accounts_untold", {}))
        tokens["under_way"] += each.get("tokens_at_risk", 0)
    tokens["held"] += buffer.get("tokens_held", 0)
    return {name: count for name, count in tokens.items() if count}


def lines_of(account: Account, now_s: float | None = None) -> Iterator[str]:
    """Both tables, for a terminal.

    Args:
        account: the books.
        now_s: monotonic time of this machine, to tell ages by; None when the run has ended.
    """
    yield from _groups(account)
    if account.owners and now_s is not None:
        rows = [
            (name, f"{each['members']:.0f}", seconds(max(0.0, now_s - each["since_s"])))
            for name, each in sorted(account.owners.items())
        ]
        yield ""
        yield from table((("in flight at", LEFT), ("episodes", RIGHT), ("oldest", RIGHT)), rows)
    if account.tokens:
        yield ""
        yield from token_lines(account.tokens)


def _groups(account: Account) -> Iterator[str]:
    rows = [("trained", f"{account.trained}")]
    rows += [(f"dropped: {why}", f"{n}") for why, n in sorted(account.dropped.items())]
    rows += [("being sampled", f"{account.open}"), ("in the buffer", f"{account.stored}")]
    rows.append(("issued", f"{account.issued}"))
    yield from table((("groups", LEFT), ("count", RIGHT)), rows)
    if account.balance:
        yield f"the books do not balance: {account.balance:+} groups are nowhere"


def token_lines(tokens: Mapping[str, int]) -> Iterator[str]:
    """The waste statement: each sampled token in one account, the largest first."""
    total = sum(tokens.values()) or 1
    ordered = sorted(tokens.items(), key=lambda item: (item[0] not in USED, -item[1]))
    rows = [(name, f"{count:,}", f"{count / total:.1%}") for name, count in ordered]
    rows.append(("sampled", f"{sum(tokens.values()):,}", ""))
    yield from table((("tokens", LEFT), ("count", RIGHT), ("share", RIGHT)), rows)
