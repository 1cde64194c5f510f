"""Bytes of the archive: what is written of a trajectory, and how a record seals what it says.

RUN/archive/WRITER/NNNNNN.log are the files of one process each, records in the frame of
`milepost.actors.journal`. A record has a head, which is all that an index needs, and a body under
zstd. Its digest is over all of that and over the digest of the record before it, so nothing in the
middle can be changed, taken out or put in without every later record telling. docs/archive.md is
the page for readers in other languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Literal

import msgspec
import zstandard
from msgspec import Struct

from milepost.actors.bulk_hooks import decode_bulk, encode_bulk
from milepost.actors.journal import HEADER, frame
from milepost.actors.routes import RoutesShape
from milepost.actors.seal import seal_of
from milepost.messages.bulk import Bulk
from milepost.messages.shared import Finite, NonNegative, Positive, Status
from milepost.messages.trajectory import Conversation, Trajectory

FOLDER: Final = "archive"
BUFFER: Final = "buffer"
SUFFIX: Final = ".log"
MAGIC: Final = "MPA1"
MARK: Final = b"\xa4" + MAGIC.encode()
"""MAGIC as it lies in a record, one byte behind the frame's header: damage is passed by it."""
MARK_OFFSET: Final = HEADER.size + 1
DIGEST_BYTES: Final = 16
FIELD_BYTES: Final = 8
ZSTD_LEVEL: Final = 1


class RecordDamaged(ValueError):
    """Bytes that are no record of an archive."""


class Kind(StrEnum):
    """What a record says."""

    OPENED = "opened"
    ARRIVED = "arrived"
    JUDGED = "judged"
    TRAINED = "trained"
    REFUSED = "refused"
    REMOVED = "removed"
    MISSED = "missed"
    CLOSED = "closed"


class Verdict(StrEnum):
    """The buffer's, of one trajectory."""

    WAITING = "waiting"
    """Its group is not complete."""
    STORED = "stored"
    """It may be trained, or was."""
    DROPPED = "dropped"


class Record(Struct, frozen=True, kw_only=True, array_like=True):
    """One record."""

    magic: Literal["MPA1"] = "MPA1"
    sequence: NonNegative
    """Of its writer, without a gap."""
    time: float
    """Unix time, seconds."""
    kind: Kind
    previous: bytes
    """Digest of the record before it; of the first record, `genesis`."""
    head: bytes
    """msgpack map of the struct in `HEADS`."""
    body: bytes = b""
    """msgpack map of an `ArrivedBody`, under zstd, or of a `TrainedBody`, as it is."""
    digest: bytes = b""
    """BLAKE2b-128 over the msgpack array of all fields before this one."""


class Model(Struct, frozen=True, kw_only=True):
    """What rows must agree with, as the trainer's door knows it."""

    vocabulary: Positive
    tokenizer_hash: str
    template_hash: str
    keeps_caches: bool
    """As in `DoorRules`."""
    routes: RoutesShape | None = None
    """As in `DoorRules`."""


class Opened(Struct, frozen=True, kw_only=True):
    """Begins every file."""

    run_id: str
    writer: str
    incarnation: NonNegative
    segment: Positive
    goes_on: bool = False
    """The file before it was ended by this same process."""
    torn_bytes: NonNegative = 0
    """Of the file before it, which a killed process left behind its last whole record."""
    model: Model | None = None
    """Where the writer knows it."""


class Arrived(Struct, frozen=True, kw_only=True):
    """A trajectory came to the buffer."""

    key: str
    """See `key_of`, of its first row."""
    trajectory_id: str
    attempt: NonNegative
    group_id: str
    prompt_id: str
    source: str
    """Session actor that it came from."""
    status: Status
    reward: Finite
    num_tokens: NonNegative
    num_sampled_tokens: NonNegative
    num_turns: NonNegative
    num_rows: Positive
    mismatch_kinds: tuple[str, ...] = ()
    seconds: float | None = None
    """Of its episode."""
    fields: tuple[dict[str, bytes], ...]
    """For each row, BLAKE2b-64 of each field, so that a change can be named."""


class ArrivedBody(Struct, frozen=True, kw_only=True):
    """The whole of it."""

    rows: tuple[Trajectory, ...]


class Judged(Struct, frozen=True, kw_only=True):
    """The buffer's verdict on trajectories of one group; a later one takes the place of it."""

    group_id: str
    keys: tuple[str, ...]
    verdict: Verdict
    reason: str = ""
    group_rewards: tuple[Finite, ...] = ()
    """Of all members, once the group is complete."""


class Trained(Struct, frozen=True, kw_only=True):
    """A trainer rank trained one row."""

    key: str
    """Of this row."""
    trajectory_id: str
    row: NonNegative
    step: NonNegative
    """Number of the batch; the version it was trained on top of."""
    advantage: Finite
    staleness: int | None = None
    """`step` minus the oldest version of its trained tokens; None: they have no version."""
    group_rewards: tuple[Finite, ...] = ()
    digests: dict[int, str] = {}
    """Weights that the trainer knew to have been made, for each version in the row."""
    contracts: dict[str, str] = {}
    """Contract -> `passed`, `not checked` or what the trainer's door found."""


class TrainedBody(Struct, frozen=True, kw_only=True):
    """What the trainer computed of the row."""

    logprobs: Bulk | None = None
    """float32 [N] of its N loss tokens in order, nats, before the step."""


class Refused(Struct, frozen=True, kw_only=True):
    """The trainer's door refused one row."""

    key: str
    trajectory_id: str
    row: NonNegative
    step: NonNegative
    contracts: dict[str, str]


class Removed(Struct, frozen=True, kw_only=True):
    """The oldest files went, to stay below the bound."""

    segments: tuple[Positive, ...]
    num_records: NonNegative
    num_trajectories: NonNegative
    last_digest: bytes
    """Of the newest record in them: the oldest file that is left goes on from it."""


class Missed(Struct, frozen=True, kw_only=True):
    """Records that were not written, since the last one that was."""

    count: Positive
    reason: str
    names: tuple[str, ...]
    """Trajectories they spoke of, the first `MISSED_NAMES_MAX`."""


class Closed(Struct, frozen=True, kw_only=True):
    """Ends what one process wrote; where it is missing, the process was killed or the file cut."""

    missed: NonNegative
    """Records that it could not write in all."""


MISSED_NAMES_MAX: Final = 256
Head = Opened | Arrived | Judged | Trained | Refused | Removed | Missed | Closed
Body = ArrivedBody | TrainedBody
HEADS: Final[dict[Kind, type[Head]]] = {
    Kind.OPENED: Opened,
    Kind.ARRIVED: Arrived,
    Kind.JUDGED: Judged,
    Kind.TRAINED: Trained,
    Kind.REFUSED: Refused,
    Kind.REMOVED: Removed,
    Kind.MISSED: Missed,
    Kind.CLOSED: Closed,
}
KINDS: Final[dict[type[Head], Kind]] = {head: kind for kind, head in HEADS.items()}


encode: Final = msgspec.msgpack.Encoder(enc_hook=encode_bulk).encode
"""msgpack of a head or a body; arrays are maps of dtype, shape and data."""
_records: Final = msgspec.msgpack.Decoder(Record)
_heads: Final = {kind: msgspec.msgpack.Decoder(head) for kind, head in HEADS.items()}
_arrived: Final = msgspec.msgpack.Decoder(ArrivedBody, dec_hook=decode_bulk)
_trained: Final = msgspec.msgpack.Decoder(TrainedBody, dec_hook=decode_bulk)
_NO_BODY: Final = (msgspec.MsgspecError, ValueError, KeyError, TypeError)
_conversations: Final = msgspec.json.Decoder(Conversation)


def genesis(run_id: str, writer: str) -> bytes:
    """What the first record of a writer follows."""
    return blake2b(f"{run_id}/{writer}".encode(), digest_size=DIGEST_BYTES).digest()


def make_record(
    head: Head, body: Body | None, *, sequence: int, time: float, previous: bytes
) -> Record:
    """A record under its digest."""
    packed = b"" if body is None else encode(body)
    if isinstance(body, ArrivedBody):
        # Log-probs, which are all of the other kind, do not get smaller by it.
        packed = zstandard.compress(packed, ZSTD_LEVEL)
    bare = Record(
        sequence=sequence,
        time=time,
        kind=KINDS[type(head)],
        previous=previous,
        head=encode(head),
        body=packed,
    )
    return msgspec.structs.replace(bare, digest=digest_of(bare))


def digest_of(record: Record) -> bytes:
    """BLAKE2b-128 over all fields but the digest."""
    said = (
        record.magic,
        record.sequence,
        record.time,
        record.kind,
        record.previous,
        record.head,
        record.body,
    )
    return blake2b(encode(said), digest_size=DIGEST_BYTES).digest()


def framed(record: Record) -> bytes:
    """The record as it lies in a file."""
    return frame(encode(record))


def read_record(payload: bytes) -> Record:
    """The inverse of `framed`, less the frame.

    Raises:
        RecordDamaged: see there.
    """
    try:
        return _records.decode(payload)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(f"no record: {error}") from error


def read_head(record: Record) -> Head:
    """What it says.

    Raises:
        RecordDamaged: not what its kind says.
    """
    try:
        return _heads[record.kind].decode(record.head)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(f"the head of a record `{record.kind}`: {error}") from error


def read_arrived(record: Record) -> ArrivedBody:
    """The body of an `Arrived`.

    Raises:
        RecordDamaged: it is none.
    """
    try:
        return _arrived.decode(zstandard.decompress(record.body))
    except (zstandard.ZstdError, *_NO_BODY) as error:
        raise RecordDamaged(f"the body of a record `{record.kind}`: {error}") from error


def read_trained(record: Record) -> TrainedBody:
    """The body of a `Trained`.

    Raises:
        RecordDamaged: it is none.
    """
    try:
        return _trained.decode(record.body)
    except _NO_BODY as error:
        raise RecordDamaged(f"the body of a record `{record.kind}`: {error}") from error


def read_conversation(row: Trajectory) -> Conversation | None:
    """The messages of one row; None: the session did not write them down.

    Raises:
        RecordDamaged: they are none.
    """
    if row.conversation is None:
        return None
    try:
        return _conversations.decode(row.conversation.data)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(f"a conversation: {error}") from error


def key_of(row: Trajectory) -> str:
    """Names a row by its content: its seal, which group rewards and group size are not under."""
    return row.certificate.seal or seal_of(row)


def field_digests(row: Trajectory) -> dict[str, bytes]:
    """BLAKE2b-64 of each field of a row, as msgpack has it."""
    numbers = {
        "reward": float(row.reward),
        "metrics": {k: float(v) for k, v in row.metrics.items()},
    }
    return {
        name: blake2b(
            encode(numbers.get(name, getattr(row, name))), digest_size=FIELD_BYTES
        ).digest()
        for name in row.__struct_fields__
    }


def arrived(rows: Sequence[Trajectory], source: str) -> tuple[Arrived, ArrivedBody]:
    """What is written of a trajectory that came to the buffer."""
    first = rows[0]
    kinds = sorted({kind for row in rows for kind in row.certificate.mismatch_kinds})
    attempt = first.metadata.get("attempt", 0)
    seconds = first.metadata.get("seconds", first.metrics.get("seconds"))
    head = Arrived(
        key=key_of(first),
        trajectory_id=first.trajectory_id,
        attempt=attempt if isinstance(attempt, int) and attempt >= 0 else 0,
        group_id=first.group_id,
        prompt_id=first.prompt_id,
        source=source,
        status=first.status,
        reward=float(first.reward),
        num_tokens=sum(row.token_ids.shape[0] for row in rows),
        num_sampled_tokens=sum(row.num_sampled_tokens for row in rows),
        num_turns=sum(turn.trained for row in rows for turn in row.turns),
        num_rows=len(rows),
        mismatch_kinds=tuple(kinds),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        fields=tuple(map(field_digests, rows)),
    )
    return head, ArrivedBody(rows=tuple(rows))
