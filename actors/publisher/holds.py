"""Leases on the version being served: while one is held, nothing new is activated."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.actors.effects import Effect, Reply, Request, Wake
from milepost.messages.publisher import HoldVersion, VersionHeld


@dataclass(slots=True)
class Holds:
    """Who holds the served version, and who waits to."""

    _until_s: dict[str, float] = field(default_factory=dict)
    _waiting: dict[str, tuple[HoldVersion, Request]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True while anybody holds the version."""
        return bool(self._until_s)

    def __str__(self) -> str:
        """The holders, with the end of their leases."""
        return ", ".join(f"{holder} until {at:.1f}" for holder, at in sorted(self._until_s.items()))

    def asked(self, message: HoldVersion, request: Request) -> None:
        """Somebody wants a hold; granted by `grant` as soon as a version is served whole."""
        self._waiting[message.holder] = (message, request)

    def grant(self, version: int, now_s: float) -> list[Effect]:
        """Every engine serves `version` and none is being switched: grant what waits."""
        effects: list[Effect] = []
        for holder, (message, request) in self._waiting.items():
            until_s = now_s + message.lease_s
            self._until_s[holder] = until_s
            effects.append(Reply(request, VersionHeld(version=version)))
            effects.append(Wake(f"hold/{holder}", until_s))
        self._waiting.clear()
        return effects

    def release(self, holder: str) -> None:
        """The holder is done, dead, or never came to hold."""
        self._until_s.pop(holder, None)
        self._waiting.pop(holder, None)

    def expire(self, holder: str, now_s: float) -> bool:
        """True when the lease of `holder` ended and was taken."""
        if self._until_s.get(holder, now_s + 1) > now_s:
            return False
        del self._until_s[holder]
        return True
