"""HTTP addresses of sessions: whoever has one may chat, and nobody can guess one."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from milepost.messages.session import SessionSpec

MAC_BYTES: Final = 16


class Addresses:
    """Makes and reads them; keeps no list.

    The id in an address is the session's name and attempt with a keyed hash of both, so an agent
    that was left behind cannot reach the attempt that took its place. Sessions that clients open
    by themselves have random ids, which are their names.

    Args:
        base_url: `http://HOST:PORT`.
        secret: of this process; addresses die with it.
    """

    def __init__(self, base_url: str, secret: bytes) -> None:
        self.base_url = base_url
        self._secret = secret

    def url(self, spec: SessionSpec) -> str:
        """Base URL of a session."""
        return f"{self.base_url}/sessions/{self.key(spec.trajectory_id, spec.attempt)}"

    def key(self, trajectory_id: str, attempt: int) -> str:
        """Id of a session of the run in its address."""
        named = f"{attempt}/{trajectory_id}".encode()
        return urlsafe_b64encode(self._mac(named) + named).rstrip(b"=").decode()

    def read(self, key: str) -> tuple[str, int]:
        """Name and attempt. A key that is not of our making is taken as a name, attempt 0."""
        try:
            raw = urlsafe_b64decode(key + "=" * (-len(key) % 4))
        except ValueError:
            return key, 0
        mac, named = raw[:MAC_BYTES], raw[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(named)):
            return key, 0
        attempt, _, trajectory_id = named.decode().partition("/")
        return trajectory_id, int(attempt)

    def _mac(self, named: bytes) -> bytes:
        return hashlib.blake2b(named, digest_size=MAC_BYTES, key=self._secret).digest()
