"""The buffer's journal on disk, so that kill -9 loses no complete group and trains none twice.

RUN/journal/groups.NNNNNN hold the complete groups: checksummed records, each zstd over msgpack of
the group's trajectories, raw buffers and all. RUN/journal/marks says what became of them.

Kept: every group that is not trained, and every trained one until `checkpoints_keep` checkpoints
cover it, since a resume may go back to the oldest of them. A file goes as soon as nothing in it is
kept; over `journal_bytes_max`, the oldest files that hold only trained groups go earlier, and a
resume then issues those groups again.

Durability: groups and marks are written before anybody is told of them (survives kill -9), and
synced to disk before a checkpoint counts (survives a power cut).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import zstandard

from milepost.actors.buffer.groups import StoredGroup, stored_group
from milepost.actors.buffer.marks import (
    LOST_AT_RESUME,
    Accounted,
    Covered,
    Fates,
    Mark,
    WentOn,
    decode_mark,
    encode_mark,
)
from milepost.actors.bulk_hooks import decode_bulk, encode_bulk
from milepost.actors.journal import JournalFile, read_records, replace_file
from milepost.messages.trajectory import Trajectory

ZSTD_LEVEL: Final = 1
FILE_BYTES_MAX: Final = 64 << 20
MARKS_BYTES_MAX: Final = 8 << 20


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    trajectories: tuple[Trajectory, ...]


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_bulk)
_decoder = msgspec.msgpack.Decoder(_Kept, dec_hook=decode_bulk)


def encode_group(group: StoredGroup) -> bytes:
    """One group as a record of the journal."""
    kept = _Kept(group_id=group.group_id, trajectories=group.trajectories)
    return zstandard.ZstdCompressor(ZSTD_LEVEL).compress(_encoder.encode(kept))


def decode_group(data: bytes) -> StoredGroup:
    """The inverse of `encode_group`.

    Raises:
        zstandard.ZstdError, msgspec.DecodeError: not such a record.
    """
    kept = _decoder.decode(zstandard.ZstdDecompressor().decompress(data))
    return stored_group(kept.group_id, kept.trajectories)


class GroupJournal:
    """Both journals of one run.

    Args:
        folder: RUN/journal.
        bytes_max: see the module.
        fates: what the marks say; shared with nobody, the core has a copy of its own.
    """

    def __init__(self, folder: Path, bytes_max: int, checkpoints_named: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bytes_max = bytes_max
        self._file_bytes_max = max(1, min(FILE_BYTES_MAX, bytes_max // 8))
        self._marks = JournalFile(folder / "marks")
        self.fates = Fates(checkpoints_named=checkpoints_named)
        self.fates.apply_all(map(decode_mark, read_records(folder / "marks")))
        self._names: dict[int, set[str]] = {}
        """File number -> groups in it."""
        self._sizes: dict[int, int] = {}
        self._current: JournalFile | None = None

    # ---- reading -------------------------------------------------------------------------

    def recover(self, groups_max: int) -> list[StoredGroup]:
        """Groups not trained yet, in the order they were stored, handed ones besides `groups_max`.

        Raises:
            JournalDamaged: a file is damaged before its end.
        """
        handed = {name for each in self.fates.handed.values() for name in each.groups}
        groups: dict[str, StoredGroup] = {}
        for number, path in self._files():
            names: set[str] = set()
            for record in read_records(path):
                group = decode_group(record)
                name = group.group_id
                names.add(name)
                if self._is_waiting(name) and (name in handed or len(groups) < groups_max):
                    groups[name] = group
            self._names[number] = names
            self._sizes[number] = path.stat().st_size
        self.fates.forget(keep=set().union(*self._names.values()))
        return list(groups.values())

    def go_on_from(self, version: int, groups_max: int) -> None:
        """The run goes on from the checkpoint of `version`; 0: it begins again, with no group.

        Groups trained later than that are to be trained again. Groups sampled in part under a later
        version are forgotten, and the rollout actor issues them anew: the resumed run never makes
        that version, so nobody could say what policy produced them. What stays is written into a
        file of its own before the old ones go.
        """
        if version == 0:
            self._begin_again()
            return
        self.write((WentOn(version=version),))
        usable: dict[str, StoredGroup] = {}
        lost: dict[str, int] = {}
        old = self._files()
        for _, path in old:
            for record in read_records(path):
                group = decode_group(record)
                is_known = group.versions is None or group.versions.newest <= version
                if is_known and self._is_waiting(group.group_id) and len(usable) < groups_max:
                    usable[group.group_id] = group
                elif self._is_waiting(group.group_id):
                    lost[group.group_id] = group.num_loss_tokens
        if not old:
            return
        fresh = JournalFile(self._folder / f"groups.{old[-1][0] + 1:06d}")
        fresh.append(map(encode_group, usable.values()))
        fresh.sync()
        fresh.close()
        if any(lost.values()):
            self.write((Accounted(tokens={LOST_AT_RESUME: sum(lost.values())}),))
        self._marks.sync()
        for _, path in old:
            path.unlink()

    def _begin_again(self) -> None:
        """As the ledger does: its names come back, and none may have a fate of the last life."""
        files = [path for _, path in self._files()]
        groups = (decode_group(record) for path in files for record in read_records(path))
        held = {each.group_id: each.num_loss_tokens for each in groups}
        waiting = {name: count for name, count in held.items() if self._is_waiting(name)}
        self.write((self.fates.anew(sum(waiting.values())),))
        self._marks.sync()
        for path in files:
            path.unlink()

    def _files(self) -> list[tuple[int, Path]]:
        paths = sorted(self._folder.glob("groups.*"))
        return [(int(path.suffix[1:]), path) for path in paths]

    # ---- writing -------------------------------------------------------------------------

    def keep(self, group: StoredGroup) -> None:
        """Append a group."""
        if self._current is None or self._current.size >= self._file_bytes_max:
            self._next_file()
        assert self._current is not None
        self._current.append((encode_group(group),))
        number = max(self._names)
        self._names[number].add(group.group_id)
        self._sizes[number] = self._current.size
        if sum(self._sizes.values()) > self._bytes_max:
            self._forget(self.fates.trained)

    def _next_file(self) -> None:
        if self._current is not None:
            self._current.sync()
            self._current.close()
        number = max(self._names, default=0) + 1
        self._current = JournalFile(self._folder / f"groups.{number:06d}")
        self._names[number] = set()
        self._sizes[number] = 0

    def write(self, marks: tuple[Mark, ...]) -> None:
        """Append marks."""
        self.fates.apply_all(marks)
        self._marks.append(map(encode_mark, marks))

    def cover(self, marks: tuple[Mark, ...]) -> None:
        """Append marks of a checkpoint, make all of it durable, and forget what it covers."""
        self.write(marks)
        if self._current is not None:
            self._current.sync()
        self._marks.sync()
        assert any(isinstance(mark, Covered) for mark in marks), marks
        oldest = self.fates.oldest_checkpoint
        trained = {name: at for name, at in self.fates.trained.items() if at <= oldest}
        self._forget(trained)
        self.fates.forget(keep=set().union(*self._names.values()))
        if self._marks.size > MARKS_BYTES_MAX:
            self._compact()

    def _forget(self, trained: dict[str, int]) -> None:
        """Remove old files in which every group is gone or in `trained`."""
        kept_names = self.fates.trained.keys() - trained.keys()
        for number in sorted(self._names)[:-1]:
            names = self._names[number]
            if any(name in kept_names or self._is_waiting(name) for name in names):
                continue
            (self._folder / f"groups.{number:06d}").unlink()
            del self._names[number], self._sizes[number]

    def _is_waiting(self, name: str) -> bool:
        return name not in self.fates.trained and name not in self.fates.gone

    def _compact(self) -> None:
        self._marks.close()
        path = self._folder / "marks"
        replace_file(path, (encode_mark(self.fates.whole()),))
        self._marks = JournalFile(path)

    def close(self) -> None:
        """Close both."""
        self._marks.close()
        if self._current is not None:
            self._current.close()
