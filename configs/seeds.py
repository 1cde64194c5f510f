"""One seed in the topology, a different stream for every use, the same in every process."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the use called `names`, independent of process, platform and hash seed."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
