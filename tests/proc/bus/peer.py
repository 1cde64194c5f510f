"""A process with a bus, for tests that kill, stop and restart it.

    python -P peer.py RUN_ID ADDRESSES_JSON NAME INCARNATION

Answers every `EpochAnswer` with version + 100, except from 1000 on: those it takes and keeps for
ever. Answers `StacksRequested` with the versions it has taken. A `WeightBucket` goes back; of
version `MADE`, in memory of this process that it was made in.
"""

from __future__ import annotations

import json
import sys

import msgspec
import uvloop

from milepost.configs.spec import Address
from milepost.messages.bulk import Bulk
from milepost.messages.bus import Bus, BusLimits
from milepost.messages.engine import EpochAnswer, WeightBucket
from milepost.messages.supervisor import Stacks, StacksRequested

MADE = 7


def made(bus: Bus, bucket: WeightBucket, to: str) -> WeightBucket:
    """The same bytes in memory that travels."""
    (tensor,) = bucket.tensors
    data = bus.allocate(tensor.nbytes, to=to)
    data[:] = tensor.data
    return msgspec.structs.replace(bucket, tensors=(Bulk(tensor.dtype, tensor.shape, data),))


async def serve(run_id: str, addresses: dict[str, Address], name: str, incarnation: int) -> None:
    bus = await Bus.open(
        name=name,
        incarnation=incarnation,
        run_id=run_id,
        addresses=addresses,
        limits=BusLimits(probe_s=0.1),
    )
    taken: list[int] = []
    while True:
        incoming = await bus.receive()
        match incoming.message:
            case EpochAnswer(version=version) if incoming.wants_reply:
                taken.append(version)
                if version < 1000:
                    bus.reply(incoming, EpochAnswer(version=version + 100, ok=True))
            case EpochAnswer(version=version):
                taken.append(version)
            case StacksRequested():
                bus.reply(incoming, Stacks(text=json.dumps(taken)))
            case WeightBucket(version=version) as bucket if version == MADE:
                bus.reply(incoming, made(bus, bucket, incoming.source))
            case WeightBucket() as bucket:
                bus.reply(incoming, bucket)
            case other:
                raise AssertionError(f"{incoming.source} sent {other}")


if __name__ == "__main__":
    run, places, me, number = sys.argv[1:]
    everyone = msgspec.json.decode(places, type=dict[str, Address])
    uvloop.run(serve(run, everyone, me, int(number)))
