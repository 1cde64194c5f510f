"""Checks every trajectory of an archive again, from its own bytes; nothing is believed.

What the trainer's door asks of a row is asked again. Beside it, each record must be the one that
was written, follow from the one before, say of its trajectory what follows from it, and agree with
what the other processes wrote of the same row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from milepost.actors.archive.chain import CHAIN, RECORD, Chain, Fault
from milepost.actors.archive.index import IndexLocked, discard, text_of
from milepost.actors.archive.index_view import differences
from milepost.actors.archive.layout import (
    BUFFER,
    FOLDER,
    Arrived,
    Head,
    Model,
    Opened,
    Record,
    RecordDamaged,
    Trained,
    arrived,
    key_of,
    read_arrived,
    read_conversation,
    read_trained,
)
from milepost.actors.archive.life import Life, life_of
from milepost.actors.archive.reader import Archive, IndexDamaged, NoArchive
from milepost.actors.archive.segments import writers_of
from milepost.actors.archive.told import Told
from milepost.actors.arrays import from_bulk
from milepost.actors.trainer.door import LOGPROB_MAX, SEAL, faults, trained_versions
from milepost.actors.trainer.verdicts import impossible
from milepost.actors.trainer.works import DoorRules, ModelFacts
from milepost.messages.trajectory import Provenance, Trajectory

TRAINING: Final = "training"
VERSIONS_MAX: Final = 1 << 62
UNKNOWN: Final = Model(vocabulary=1 << 31, tokenizer_hash="", template_hash="", keeps_caches=True)
"""The model of a run whose trainer wrote nothing: rows are held against one another only."""


class Report(msgspec.Struct, kw_only=True):
    """What an audit found."""

    run_folder: str
    num_records: int = 0
    num_trajectories: int = 0
    num_rows: int = 0
    num_trained: int = 0
    """Rows that a trainer trained."""
    num_missed: int = 0
    """Records that could not be written, by the writers' own account."""
    faults: list[Fault] = []
    notes: list[str] = []
    """What a person should know, though nothing is wrong."""


def audit(run_folder: Path) -> Report:
    """Check all of it.

    Raises:
        NoArchive: there is none.
    """
    if BUFFER not in writers_of(run_folder):
        raise NoArchive(f"{run_folder} has no archive")
    auditor = _Auditor(run_folder, Report(run_folder=str(run_folder), faults=[], notes=[]))
    auditor.run(life_of(run_folder))
    return auditor.report


@dataclass(slots=True)
class _Auditor:
    run_folder: Path
    report: Report
    told: Told = field(default_factory=Told)
    model: Model = UNKNOWN
    is_whole: bool = True
    """Everything that the buffer ever wrote is here: what others speak of must be, too."""
    may_lack: bool = False
    """The buffer was killed: what it had not written by then is nowhere."""
    num_without_words: int = 0
    """Rows whose conversation was written down by the session, and is not here."""

    def run(self, life: Life) -> None:
        for writer in writers_of(self.run_folder):
            self._follow(writer, life)
        buffer = Chain(self.run_folder / FOLDER / BUFFER, BUFFER)
        for where, record, head in buffer.records():
            if isinstance(head, Arrived):
                self._arrival(where, record, head)
        self._compare()
        waiting = self.report.num_trajectories - len(self.told.judged)
        notes = self.report.notes
        if life.problem:
            notes.append(f"{life.problem}: whether the end of a file is missing cannot be known")
        if self.num_without_words:
            notes.append(
                f"{self.num_without_words} rows are without the conversation that they were sealed "
                f"with: they were written from the journal, which keeps none, since the buffer was "
                f"killed before it had written them, could not write them, or had removed them"
            )
        if waiting > 0:
            notes.append(f"{waiting} trajectories have no verdict yet")

    # ---- the records of one process ------------------------------------------------------

    def _follow(self, writer: str, life: Life) -> None:
        report = self.report
        chain = Chain(self.run_folder / FOLDER / writer, writer, life.closed_run(writer))
        end = life.ends.get(writer)
        for where, record, head in chain.records():
            self._hear(writer, where, record, head)
            if end and record.sequence == end.records - 1 and record.digest.hex() != end.head:
                text = f"record {record.sequence} is not the one that the summary of the run names"
                gone = f"{text}: it, or one before it, was changed, and the chain made anew"
                report.faults.append(Fault(contract=CHAIN, text=gone, where=where))
        if end and chain.next_sequence < end.records:
            text = f"{chain.next_sequence} records, the summary of the run says {end.records}"
            report.faults.append(Fault(contract=CHAIN, text=text, where=writer))
            chain.is_broken = True
        if life.run_id and not end:
            text = "the summary of the run does not say how its records end"
            report.notes.append(f"{writer}: {text}, a chain made anew would not be found")
        report.num_records += chain.num_records
        report.num_missed += chain.num_missed
        report.faults += chain.faults
        report.notes += chain.notes
        if writer == BUFFER:
            self.is_whole = not (
                chain.is_broken or chain.num_missed or BUFFER in self.told.shortened
            )
            self.may_lack = chain.was_killed

    def _hear(self, writer: str, where: str, record: Record, head: Head) -> None:
        self.told.hear(writer, where, record, head)
        match head:
            case Opened(model=Model() as model):
                self.model = model
            case Trained():
                self.report.num_trained += 1
            case _:
                pass

    # ---- one trajectory ------------------------------------------------------------------

    def _arrival(self, where: str, record: Record, head: Arrived) -> None:
        self.report.num_trajectories += 1
        try:
            rows = read_arrived(record).rows
        except RecordDamaged as error:
            self._fault(RECORD, str(error), where, head)
            self.told.arrives(where, record, head, None)
            return
        for text in contradictions(head, rows):
            self._fault(RECORD, text, where, head)
        may_lack = self.may_lack or not self.is_whole or head.key in self.told.rows
        rewards = self.told.rewards.get(head.key, ())
        self.told.arrives(where, record, head, self._texts(where, head, rows))
        for number, row in enumerate(rows):
            self.report.num_rows += 1
            self.told.rows.add(key_of(row))
            self._row(where, head, number, grouped(row, rewards))
            if row.certificate.conversation_hash and row.conversation is None:
                self.num_without_words += may_lack
                if not may_lack:
                    text = "the conversation that it was sealed with is gone"
                    self._fault(SEAL, text, where, head, number)

    def _texts(self, where: str, head: Arrived, rows: Sequence[Trajectory]) -> str | None:
        """What of its conversations can be searched; None: one of them cannot be read."""
        texts: list[str] = []
        is_whole = True
        for number, row in enumerate(rows):
            try:
                said = read_conversation(row)
            except RecordDamaged as error:
                self._fault(RECORD, str(error), where, head, number)
                is_whole = False
            else:
                texts += [text_of(said)] if said else []
        return "\n".join(texts) if is_whole else None

    def _row(self, where: str, head: Arrived, number: int, row: Trajectory) -> None:
        trained = self.told.trained.get(key_of(row))
        told = trained.head if trained else None
        rules = self._rules(row, told)
        for text in faults(row, rules):
            name, _, what = text.partition(": ")
            contract = name.partition(" ")[0]
            self._fault(contract, what, where, head, number)
        if trained is not None:
            place, record, told = trained
            for text in disagreements(row, told, record, is_grouped=head.key in self.told.rewards):
                self._fault(TRAINING, text, place, head, number)
            for text in impossible(told.contracts, rules):
                self._fault(TRAINING, text, place, head, number)

    def _rules(self, row: Trajectory, told: Trained | None) -> DoorRules:
        """What the door knew, as far as it was written down."""
        model = self.model
        return DoorRules(
            sft=Provenance.RECORDED in bytes(row.provenance.data),
            model=ModelFacts(
                vocabulary=model.vocabulary,
                tokenizer_hash=model.tokenizer_hash,
                template_hash=model.template_hash,
                is_mixture=model.routes is not None,
            ),
            version=told.step if told else VERSIONS_MAX,
            digests=told.digests if told else {},
            keeps_caches=model.keeps_caches,
            routes=model.routes,
        )

    def _compare(self) -> None:
        """Hold all of them against one another; a broken index is made again first.

        It follows from the records, and says nothing against them by being broken.
        """
        notes, why = self.report.notes, "the run goes on, or cannot be written"
        for _ in range(2):
            try:
                with Archive.open(self.run_folder) as archive:
                    if archive.is_current:
                        self.report.faults += list(differences(archive, self.told))
                        self._strangers()
                        return
                break
            except NoArchive as error:
                why = str(error)
                break
            except (IndexDamaged, sqlite3.Error) as error:
                why = str(error)
            try:
                discard(self.run_folder)
            except (IndexLocked, OSError):
                break
        told = "what the index, the buffer and the trainer say of one another"
        notes.append(f"{why}: {told} is not compared")

    def _strangers(self) -> None:
        """Words about rows that never came: the originals were taken away or replaced."""
        if not self.is_whole:
            return
        if self.may_lack:
            missing = self.told.trained.keys() - self.told.rows
            if missing:
                self.report.notes.append(
                    f"{len(missing)} rows were trained and are not in the archive: the buffer was "
                    f"killed before it had written them"
                )
            return
        for key, (where, _, told) in self.told.trained.items():
            if key not in self.told.rows:
                text = f"row {told.row} was trained in step {told.step}, and is not in the archive"
                self._fault(TRAINING, text, where, told)
        for key, (where, _) in self.told.judged.items():
            if key not in self.told.rows:
                text = f"a verdict on the trajectory {key}, which is not in the archive"
                self.report.faults.append(Fault(contract=RECORD, text=text, where=where))

    def _fault(
        self, contract: str, text: str, where: str, head: Arrived | Trained, row: int | None = None
    ) -> None:
        fault = Fault(
            contract=contract,
            text=text,
            where=where,
            trajectory_id=head.trajectory_id,
            attempt=head.attempt if isinstance(head, Arrived) else None,
            row=head.row if isinstance(head, Trained) else row,
        )
        self.report.faults.append(fault)


def contradictions(head: Arrived, rows: Sequence[Trajectory]) -> Iterator[str]:
    """What the head of an arrival says that does not follow from its rows."""
    if not rows:
        yield "a trajectory without a row"
        return
    expected, _ = arrived(rows, head.source)
    for name in head.__struct_fields__:
        said, found = getattr(head, name), getattr(expected, name)
        if name == "fields":
            yield from _changed(said, found)
        elif said != found:
            yield f"{name} is {found!r} by its rows, {said!r} by its head"
    session = rows[0].metadata.get("session", head.source)
    if session != head.source:
        yield f"it came from {head.source}, its row says {session!r}"


def _changed(said: Sequence[dict[str, bytes]], found: Sequence[dict[str, bytes]]) -> Iterator[str]:
    if len(said) != len(found):
        yield f"{len(found)} rows, {len(said)} were written"
    for number, (before, now) in enumerate(zip(said, found, strict=False)):
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"field `{name}` of row {number} is not the one that was written"


def disagreements(
    row: Trajectory, told: Trained, record: Record, *, is_grouped: bool
) -> Iterator[str]:
    """What the trainer wrote of a row that does not fit the row."""
    if (told.trajectory_id, told.row) != (row.trajectory_id, row.row):
        yield f"it is row {row.row} here, row {told.row} of {told.trajectory_id} at the trainer"
    if is_grouped and told.group_rewards != row.group_rewards:
        yield f"group rewards are {row.group_rewards}, at the trainer {told.group_rewards}"
    versions = trained_versions(row)
    staleness = told.step - min(versions) if versions else None
    if staleness != told.staleness:
        yield f"{staleness} versions old in step {told.step}, at the trainer {told.staleness}"
    if not isfinite(told.advantage):
        yield f"its advantage is {told.advantage}"
    try:
        logprobs = read_trained(record).logprobs
    except RecordDamaged as error:
        yield str(error)
        return
    count = bytes(row.loss_mask.data).count(1)
    if logprobs is None or logprobs.dtype != "float32" or logprobs.shape != (count,):
        yield f"{count} loss tokens, the trainer's log-probs are {logprobs}"
    elif not bool((from_bulk(logprobs) <= LOGPROB_MAX).all()):
        yield "the trainer's log-probs are not all at most 0"


def grouped(row: Trajectory, rewards: tuple[float, ...]) -> Trajectory:
    """The row as the trainer's door sees it; of a group that never was complete, a group of one."""
    known = rewards or row.group_rewards or (row.reward,)
    return msgspec.structs.replace(row, group_rewards=known, group_size=len(known))
