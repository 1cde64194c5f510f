"""What the supervisor hands a child process: who it is and where everybody lives."""

from __future__ import annotations

from msgspec import Struct

from milepost.configs.topology import Topology


class Address(Struct, frozen=True, kw_only=True):
    """Where an actor's mailbox is."""

    endpoint: str
    """`ipc://PATH` or `tcp://HOST:PORT`."""
    public_key: str = ""
    """CURVE public key (Z85) of a tcp mailbox."""


class ActorSpec(Struct, frozen=True, kw_only=True):
    """One child. Written as JSON into the run folder (mode 0600), read by `milepost.actors`."""

    actor: str
    """Process name, e.g. `engine-0`."""
    kind: str
    """`engine`, or the name of a `[custom.NAME]` table."""
    index: int
    incarnation: int
    run_id: str
    run_folder: str
    addresses: dict[str, Address]
    """Of every actor and of `supervisor`."""
    topology: Topology
    topology_hash: str
    secret_key: str = ""
    """CURVE secret key (Z85) when the run has tcp edges."""
    listen_fd: int = -1
    """Inherited descriptor of the bound, listening tcp socket of this actor's mailbox."""
    resume_step: int | None = None
    """Step of the checkpoint to go on from; None for a fresh run."""
