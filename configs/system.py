"""`[system]`: the bus, its limits, and every deadline of the run in one table."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from milepost.configs.base import Config, Positive, PositiveFloat

CoreSharing: TypeAlias = Literal["batch", "normal"]


class TimeoutsConfig(Config, kw_only=True):
    """`[system.timeouts]`: each wait has its name here. Seconds."""

    hello_s: PositiveFloat = 60.0
    """Process start to HELLO (imports included)."""
    ready_s: PositiveFloat = 300.0
    """HELLO to READY (models loaded)."""
    heartbeat_s: PositiveFloat = 30.0
    """Longest silence of an actor's own loop before it counts as stuck."""
    ask_s: PositiveFloat = 60.0
    """An answer between actors, where the question has no deadline of its own."""
    tell_s: PositiveFloat = 60.0
    """A message until its receiver has taken it."""
    drain_s: PositiveFloat = 30.0
    stop_s: PositiveFloat = 5.0
    """From the order to stop to SIGKILL."""


class BusConfig(Config, kw_only=True):
    """`[system.bus]`: limits, applied before anything is decoded."""

    frame_bytes_max: Positive = 1 << 30
    frames_max: Annotated[int, Meta(ge=64, le=1 << 20)] = 4096
    body_bytes_max: Annotated[int, Meta(ge=1 << 16)] = 16 << 20
    depth_max: Annotated[int, Meta(ge=16, le=256)] = 32
    window_messages: Positive = 256
    """Messages one link may have sent without the receiver having taken them."""
    inbox_messages_max: Annotated[int, Meta(ge=1, le=1 << 20)] = 4096
    shared_memory_above_bytes: Positive = 1 << 20
    """Payloads larger than this travel in shared memory between processes of one host."""
    allocated_bytes_max: Positive = 8 << 30
    """Shared memory of one process that payloads (weight versions) are made in, as long as they are
    in use; beyond it they are made elsewhere and copied there."""


class RecorderConfig(Config, kw_only=True):
    """`[system.recorder]`: what each actor writes down of what it receives and decides."""

    enabled: bool = True
    ring_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 32)] = 4 << 20
    """Of the last lines of each actor, in `RUN/recorder`; about 20,000. They outlive `kill -9`."""
    payloads: bool = False
    """Keep the content of every message and result, too: for `milepost replay`."""
    payload_bytes_max: Positive = 1 << 30
    """Of each actor. What comes later is not kept, and cannot be replayed."""
    pins_max: Positive = 8
    """Copies of a ring that nothing overwrites: of each actor, after failures and on request. A
    life of it, and a resumed run, begins to count anew."""


class SystemConfig(Config, kw_only=True):
    """`[system]`"""

    place: str = "local"
    """Where processes are started. `local` is this machine; `ssh`, `slurm` and `kubernetes` are
    refused until they are there."""
    transport: Literal["ipc", "tcp"] = "ipc"
    """How actors talk. `ipc`: sockets in a folder that only this user can enter, large arrays in
    shared memory. `tcp`: encrypted, with keys made for this run; arrays travel in frames."""
    cores: CoreSharing = "batch"
    """How actors of one host share its cores. `batch`: who gets a message waits for a free core or
    the end of a time slice, which saves work where cores are scarce. `normal`: it interrupts who
    computes, so that it answers some milliseconds earlier there."""
    host: str = "127.0.0.1"
    """Address of this machine that tcp mailboxes are bound to, and that peers connect to."""
    timeouts: TimeoutsConfig = TimeoutsConfig()
    bus: BusConfig = BusConfig()
    recorder: RecorderConfig = RecorderConfig()
