"""Archives to read: real rows that pass the trainer's door, and many thin ones for scale."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import xxhash

from milepost.actors.archive.author import Author
from milepost.actors.archive.index import Index, Written, text_of
from milepost.actors.archive.layout import (
    Arrived,
    ArrivedBody,
    Judged,
    Model,
    Trained,
    TrainedBody,
    Verdict,
    arrived,
    key_of,
)
from milepost.actors.archive.writer import ArchiveWriter, Said
from milepost.actors.seal import sealed
from milepost.messages.bulk import Bulk
from milepost.messages.shared import FinishReason, SamplingParams, Status, VersionSpan, WeightsUsed
from milepost.messages.trajectory import (
    Certificate,
    Conversation,
    Provenance,
    Trajectory,
    TurnBoundary,
)

SQLITE_PAGE = 4096
"""Bytes that an index is read and written by."""
RUN_ID = "kit"
VOCABULARY = 512
TOKENIZER = "ab" * 16
TEMPLATE = "cd" * 16
WORDS = ("red", "green", "blue", "seven", "lookup", "phone", "Alice", "answer", "tool", "why")


MODEL = Model(
    vocabulary=VOCABULARY, tokenizer_hash=TOKENIZER, template_hash=TEMPLATE, keeps_caches=False
)


def weights(version: int) -> str:
    """Digest of a version's weights."""
    return f"{version:032x}"


def author(folder: Path, writer: str = "buffer", **fields: Any) -> Author:
    """Somebody who writes into this run's archive, with room enough."""
    given: dict[str, Any] = {"run_id": RUN_ID, "incarnation": 0, "bytes_max": 1 << 30}
    return Author(run_folder=folder, writer=writer, **(given | fields))


def row(
    name: str = "g0.0",
    *,
    seed: int = 0,
    turns: int = 2,
    reward: float = 1.0,
    versions: tuple[int, ...] = (0,),
    status: Status = Status.COMPLETED,
    mismatch: bool = False,
    attempt: int = 0,
    said: str | None = "",
    **fields: Any,
) -> Trajectory:
    """A sealed row of `turns` turns of 4 prompt and 3 sampled tokens that passes every check."""
    random = Random(f"{name}/{seed}/{attempt}")
    length = 7 * turns
    ids = array("i", [random.randrange(VOCABULARY) for _ in range(length)])
    sampled = [place % 7 >= 4 for place in range(length)]
    hasher, boundaries, spans = xxhash.xxh3_128(), [], []
    for turn in range(turns):
        start, end = 7 * turn + 4, 7 * turn + 7
        hasher.update(ids[7 * turn : end].tobytes())
        version = versions[min(turn, len(versions) - 1)]
        boundaries.append(
            TurnBoundary(
                prompt_end=start,
                end=end,
                finish_reason=FinishReason.STOP,
                prefix_hash=hasher.hexdigest(),
                engine="engine-0",
                cached_tokens=7 * turn,
                weights=(
                    WeightsUsed(version=version, digest=weights(version), kv_version=version),
                ),
            )
        )
        spans.append(VersionSpan(start=start, end=end, version=version))
    logprobs = array("f", [-random.random() - 0.01 if s else 0.0 for s in sampled])
    given: dict[str, Any] = {
        "trajectory_id": name,
        "group_id": name.rpartition(".")[0],
        "prompt_id": f"p{seed}",
        "status": status,
        "reward": reward,
        "token_ids": Bulk("int32", (length,), ids.tobytes()),
        "loss_mask": Bulk("uint8", (length,), bytes(sampled)),
        "logprobs": Bulk("float32", (length,), logprobs.tobytes()),
        "provenance": Bulk(
            "uint8",
            (length,),
            bytes(Provenance.SAMPLED if s else Provenance.INPUT for s in sampled),
        ),
        "spans": tuple(spans),
        "turns": tuple(boundaries),
        "certificate": Certificate(
            tokenizer_hash=TOKENIZER,
            template_hash=TEMPLATE,
            family="kit",
            sampling=SamplingParams(),
            canonical_mismatch="row says a, canon says b" if mismatch else None,
            mismatch_kinds=("assistant_text",) if mismatch else (),
        ),
        "num_sampled_tokens": 3 * turns,
        "metrics": {"solved": float(reward > 0)},
        "metadata": {"attempt": attempt, "session": "session-0", "seconds": random.random()},
    }
    made = Trajectory(**(given | fields))
    return sealed(made if said is None else saying(made, said))


def saying(one: Trajectory, said: str) -> Trajectory:
    """The row with its conversation beside it."""
    text = conversation(one.trajectory_id, said)
    certificate = msgspec.structs.replace(
        one.certificate, conversation_hash=xxhash.xxh3_128_hexdigest(text)
    )
    return msgspec.structs.replace(
        one, conversation=Bulk("uint8", (len(text),), text), certificate=certificate
    )


def conversation(name: str, said: str = "") -> bytes:
    """What a row says, as a session writes it down."""
    random = Random(name)
    words = " ".join(random.choices(WORDS, k=12))
    messages = [
        {"role": "user", "content": f"Question of {name}: {words}?"},
        {"role": "assistant", "content": said or f"It is {random.choice(WORDS)}."},
    ]
    return msgspec.json.encode(Conversation(messages=messages))


def came(*rows: Trajectory) -> Said:
    """A trajectory that came, as it is written."""
    return arrived(rows, "session-0")


def judged(
    *rows: Trajectory,
    verdict: Verdict = Verdict.STORED,
    reason: str = "",
    rewards: tuple[float, ...] = (),
) -> Said:
    """The verdict on trajectories of one group, as it is written."""
    keys = tuple(map(key_of, rows))
    given = rewards or tuple(each.reward for each in rows)
    head = Judged(
        group_id=rows[0].group_id, keys=keys, verdict=verdict, reason=reason, group_rewards=given
    )
    return head, None


def trained(
    one: Trajectory, step: int, *, advantage: float = 0.5, rewards: tuple[float, ...] = ()
) -> Said:
    """What a trainer made of a row, as it is written; its log-probs are the engine's less 0.01."""
    pairs = zip(array("f", bytes(one.logprobs.data)), bytes(one.loss_mask.data), strict=True)
    values = array("f", [logprob - 0.01 for logprob, mask in pairs if mask])
    oldest = min((span.version for span in one.spans), default=step)
    head = Trained(
        key=key_of(one),
        trajectory_id=one.trajectory_id,
        row=one.row,
        step=step,
        advantage=advantage,
        staleness=step - oldest,
        group_rewards=rewards or (one.reward,),
        digests={span.version: weights(span.version) for span in one.spans},
        contracts={**dict.fromkeys(("C1", "C3", "C4", "seal"), "passed"), "C2": "not applicable"},
    )
    return head, TrainedBody(logprobs=Bulk("float32", (len(values),), values.tobytes()))


@dataclass
class Library:
    """A run with an archive of its own, small enough to know by heart."""

    folder: Path
    groups: int = 4
    members: int = 2
    rows: list[Trajectory] = field(default_factory=list)

    def write(self) -> Library:
        """Groups of two; the last one is dropped, the others are trained, one batch each."""
        buffer = ArchiveWriter(author(self.folder))
        trainer = ArchiveWriter(author(self.folder, "trainer-0", model=MODEL))
        for number in range(self.groups):
            group = [
                row(
                    f"g{number}.{member}",
                    seed=number,
                    reward=float(member),
                    versions=(number, number),
                    mismatch=number == 1,
                )
                for member in range(self.members)
            ]
            rewards = tuple(each.reward for each in group)
            buffer.write([came(each) for each in group])
            if number == self.groups - 1:
                buffer.write([judged(*group, verdict=Verdict.DROPPED, reason="stale")])
            else:
                buffer.write([judged(*group)])
                trainer.write([trained(each, number, rewards=rewards) for each in group])
            self.rows += group
        self.end(buffer, trainer)
        return self

    def end(self, *writers: ArchiveWriter) -> None:
        """The run ended in order, as its supervisor says; it had these writers' last word."""
        summary = {
            "status": "done",
            "run_id": RUN_ID,
            "started_at": 0.0,
            "statistics": {
                each.author.writer: {
                    "archive": {"records": each.sequence, "head": each.digest.hex()}
                }
                for each in writers
            },
        }
        for each in writers:
            each.close()
        (self.folder / "summary.json").write_bytes(msgspec.json.encode(summary))
        (self.folder / "events.jsonl").touch()

    def path(self, writer: str = "buffer", segment: int = 1) -> Path:
        """A file of one writer."""
        return self.folder / "archive" / writer / f"{segment:06d}.log"


def fill_index(folder: Path, count: int, *, members: int = 8, groups_per_step: int = 8) -> None:
    """`count` trajectories in the index alone, for tests of scale: `Archive.read` finds none.

    Every seventh group was dropped; the others were trained, `groups_per_step` in each step.
    """
    (folder / "archive" / "buffer").mkdir(parents=True, exist_ok=True)
    random = Random(count)
    with Index(folder) as index:
        waiting: list[Written] = []
        for number in range(count):
            group, member = divmod(number, members)
            step = group // groups_per_step
            name, key = f"g{group:06d}.{member}", f"{number:032x}"
            text = " ".join(random.choices(WORDS, k=30)) + f" number {number} of group {group}"
            waiting.append(Written(0, 1e9 + number, thin(name, key, random), text))
            verdict = Verdict.DROPPED if group % 7 == 6 else Verdict.STORED
            reason = "stale" if verdict is Verdict.DROPPED else ""
            waiting.append(
                Written(
                    0,
                    1e9 + number,
                    Judged(group_id=f"g{group:06d}", keys=(key,), verdict=verdict, reason=reason),
                )
            )
            if verdict is Verdict.STORED:
                head = Trained(
                    key=key,
                    trajectory_id=name,
                    row=0,
                    step=step,
                    advantage=random.gauss(0, 1),
                    staleness=random.randrange(4),
                )
                waiting.append(Written(0, 1e9 + number, head))
            if len(waiting) >= 6000:
                index.add("buffer", 1, 0, waiting)
                waiting = []
        index.add("buffer", 1, 0, waiting)


def thin(name: str, key: str, random: Random) -> Arrived:
    """The head of an arrival whose rows are nowhere."""
    return Arrived(
        key=key,
        trajectory_id=name,
        attempt=0,
        group_id=name.rpartition(".")[0],
        prompt_id=f"p{random.randrange(1000)}",
        source="session-0",
        status=random.choice((Status.COMPLETED, Status.COMPLETED, Status.TRUNCATED)),
        reward=float(random.randrange(2)),
        num_tokens=random.randrange(50, 500),
        num_sampled_tokens=random.randrange(10, 50),
        num_turns=random.randrange(1, 6),
        num_rows=1,
        mismatch_kinds=("assistant_text",) if random.random() < 0.01 else (),
        seconds=random.random(),
        fields=({},),
    )


__all__ = [
    "ArrivedBody",
    "Library",
    "author",
    "came",
    "conversation",
    "fill_index",
    "judged",
    "row",
    "text_of",
    "thin",
    "trained",
]


def broken(index: bytes, start: int) -> bytes:
    """An index whose page there is nonsense."""
    return index[:start] + b"\xa5" * SQLITE_PAGE + index[start + SQLITE_PAGE :]
