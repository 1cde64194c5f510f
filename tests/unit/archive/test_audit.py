"""The audit finds every change of a stored trajectory, however well its tracks are covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from unit.archive.kit import Library, author, came, row
from unit.archive.tampering import Cover, body_of, mutants, records_of, rewrite, with_parts

from milepost.actors.archive.__main__ import main
from milepost.actors.archive.audit import audit
from milepost.actors.archive.chain import Fault
from milepost.actors.archive.layout import (
    Arrived,
    ArrivedBody,
    Kind,
    Record,
    Trained,
    framed,
    key_of,
    read_head,
)
from milepost.actors.archive.writer import ArchiveWriter
from milepost.actors.seal import sealed


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """One archive for the whole file: whoever changes it puts it back."""
    return Library(tmp_path_factory.mktemp("library"), groups=2).write()


def faults_after(library: Library, path: Path, harm: Callable[[], object]) -> list[Fault]:
    """What the audit finds after some harm to one file, which is undone."""
    index = library.folder / "archive" / "index.sqlite"
    originals = {each: each.read_bytes() for each in (path, index) if each.exists()}
    try:
        harm()
        return audit(library.folder).faults
    finally:
        for each, data in originals.items():
            each.write_bytes(data)


def place_of(path: Path, kind: Kind) -> int:
    """Number of the first record of a kind in a file."""
    return next(at for at, record in enumerate(records_of(path)) if record.kind is kind)


def changes_of(record: Record) -> Iterator[tuple[str, Record]]:
    """The record with one leaf changed: of its head, its body, or its own fields."""
    head, body = read_head(record), body_of(record)
    for path, changed in mutants(head, "head"):
        yield path, with_parts(record, changed, body)
    if body is not None:
        for path, changed in mutants(body, "body"):
            yield path, with_parts(record, head, changed)
    for name in ("sequence", "time"):
        yield name, replace(record, **{name: getattr(record, name) + 1})
    yield "previous", replace(record, previous=bytes(len(record.previous)))


def test_what_was_not_touched_has_no_faults(library: Library) -> None:
    """Every contract of every row is checked, and all of them hold."""
    report = audit(library.folder)
    assert (report.faults, report.notes) == ([], [])
    assert (report.num_trajectories, report.num_trained) == (4, 2)


@pytest.mark.parametrize("cover", [Cover.CHECKSUM, Cover.DIGEST], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("writer", "kind"),
    [
        ("buffer", Kind.ARRIVED),
        ("buffer", Kind.JUDGED),
        ("buffer", Kind.OPENED),
        ("buffer", Kind.CLOSED),
        ("trainer-0", Kind.TRAINED),
        ("trainer-0", Kind.OPENED),
    ],
)
def test_no_field_of_any_record_changes_without_being_named(
    library: Library, writer: str, kind: Kind, cover: Cover
) -> None:
    """Edited by hand, checksums made again: the record, or the link to the next one, tells."""
    path = library.path(writer)
    place = place_of(path, kind)
    record = records_of(path)[place]
    is_last = place == len(records_of(path)) - 1
    name = getattr(read_head(record), "trajectory_id", "")
    tried = 0
    for what, changed in changes_of(record):
        found = faults_after(library, path, partial(rewrite, path, place, changed, cover))
        named = [each for each in found if each.contract in ("record", "chain")]
        tried += 1
        if cover is Cover.DIGEST and is_last and what == "time":
            continue  # nothing follows it, and nobody else knows when a process ended
        assert named, (what, found)
        if name and kind is not Kind.OPENED and not what.startswith("head.trajectory_id"):
            assert name in {each.trajectory_id for each in named}, (what, found)
    assert tried >= 3


def test_a_row_that_was_changed_is_named_by_its_field_though_the_chain_is_made_again(
    library: Library,
) -> None:
    """Somebody rewrites the whole file: the digest of each field still says which one it was."""
    path = library.path()
    place = place_of(path, Kind.ARRIVED)
    record = records_of(path)[place]
    head, body = read_head(record), body_of(record)
    assert isinstance(body, ArrivedBody)
    fields = set()
    for what, mutant in mutants(body.rows[0]):
        changed = with_parts(record, head, ArrivedBody(rows=(mutant,)))
        found = faults_after(library, path, partial(rewrite, path, place, changed, Cover.CHAIN))
        name = what.lstrip(".").replace("[", ".").partition(".")[0]
        fields.add(name)
        texts = [each.text for each in found if each.trajectory_id]
        assert any(f"field `{name}` of row 0" in text for text in texts), (what, found)
    assert fields == set(body.rows[0].__struct_fields__)


def test_the_session_s_seal_tells_when_everything_else_is_made_again(library: Library) -> None:
    """Head, field digests and chain fit the changed row; what the session sealed does not."""
    path = library.path()
    place = place_of(path, Kind.ARRIVED)
    record = records_of(path)[place]
    head, body = read_head(record), body_of(record)
    assert isinstance(body, ArrivedBody)
    for what, mutant in mutants(body.rows[0]):
        if what.startswith((".group_rewards", ".group_size")):
            continue  # the buffer's own words: compared with its verdict and the trainer's
        changed = with_parts(record, head, ArrivedBody(rows=(mutant,)))
        found = faults_after(library, path, partial(rewrite, path, place, changed, Cover.HEAD))
        assert {each.contract for each in found} & {"seal", "C1", "C3", "C4"}, (what, found)


def test_a_conversation_is_missing_only_where_its_buffer_was_killed(tmp_path: Path) -> None:
    """The journal keeps none, so what a killed buffer had not written comes back without. Nobody
    who takes one away makes it look like that: this buffer ended in order."""
    one = row("g0.0")
    bare = came(replace(one, conversation=None))
    first = ArchiveWriter(author(tmp_path))
    first.write([bare])
    first.close()
    (found,) = audit(tmp_path).faults
    assert (found.contract, found.trajectory_id, found.row) == ("seal", "g0.0", 0)
    killed = ArchiveWriter(author(tmp_path))
    killed._end_file()
    ArchiveWriter(author(tmp_path, incarnation=1)).close()
    report = audit(tmp_path)
    assert report.faults == []
    assert "1 rows are without the conversation that they were sealed with" in str(report.notes)


def test_a_row_with_a_seal_of_its_own_is_not_the_one_that_was_judged_and_trained(
    library: Library,
) -> None:
    """The whole of the buffer's file is forged: the trainer's file knows the row by its seal."""
    path = library.path()
    place = place_of(path, Kind.ARRIVED)
    record = records_of(path)[place]
    head, body = read_head(record), body_of(record)
    assert isinstance(body, ArrivedBody)
    forged = sealed(replace(body.rows[0], reward=0.75))
    changed = with_parts(record, head, ArrivedBody(rows=(forged,)))
    found = faults_after(library, path, partial(rewrite, path, place, changed, Cover.HEAD))
    texts = [each.text for each in found if each.contract == "training"]
    assert "is not in the archive" in str(texts)


def test_what_the_trainer_wrote_of_a_row_must_fit_the_row(library: Library) -> None:
    """A trainer's file that was forged as a whole, chain and all, still speaks of our rows."""
    path = library.path("trainer-0")
    place = place_of(path, Kind.TRAINED)
    record = records_of(path)[place]
    head = read_head(record)
    assert isinstance(head, Trained)
    for field, value in {
        "key": "0" * 32,
        "row": 1,
        "staleness": 7,
        "trajectory_id": "g0.9",
        "group_rewards": (0.5, 1.0),
    }.items():
        changed = with_parts(record, replace(head, **{field: value}), body_of(record))
        found = faults_after(library, path, partial(rewrite, path, place, changed, Cover.CHAIN))
        assert "training" in {each.contract for each in found}, (field, found)


@pytest.mark.parametrize(
    ("writer", "kind"),
    [
        ("buffer", Kind.OPENED),
        ("buffer", Kind.JUDGED),
        ("trainer-0", Kind.OPENED),
        ("trainer-0", Kind.TRAINED),
    ],
)
def test_a_chain_that_was_made_anew_does_not_end_as_the_supervisor_heard(
    library: Library, writer: str, kind: Kind
) -> None:
    """One file is forged as a whole, and nobody else speaks of what was changed in it: advantage,
    verdict, digests of weights, log-probs. The summary of the run names a later record."""
    path = library.path(writer)
    place = place_of(path, kind)
    record = records_of(path)[place]
    index = library.folder / "archive" / "index.sqlite"
    for what, changed in changes_of(record):

        def forge(changed: Record = changed) -> None:
            rewrite(path, place, changed, Cover.CHAIN)
            index.unlink()

        texts = [each.text for each in faults_after(library, path, forge)]
        assert any("the summary of the run names" in text for text in texts), (what, texts)


def test_fewer_records_than_a_process_said_it_had_are_found(tmp_path: Path) -> None:
    """The run failed, so a closing record need not be there: a cut end looks like a killed one."""
    library = Library(tmp_path).write()
    summary = tmp_path / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b'"done"', b'"failed"'))
    path = library.path("trainer-0")
    records = records_of(path)
    path.write_bytes(b"".join(map(framed, records[:-1])))
    assert audit(tmp_path).faults == []
    path.write_bytes(b"".join(map(framed, records[:-2])))
    found = [each for each in audit(tmp_path).faults if each.contract == "chain"]
    assert [each.text for each in found] == ["6 records, the summary of the run says 7"]


def test_a_chain_whose_end_nobody_knows_is_a_note(tmp_path: Path) -> None:
    """Who takes the digest out of the summary is not found, but the audit says that it is out."""
    Library(tmp_path).write()
    summary = tmp_path / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b'"trainer-0"', b'"trainer-9"'))
    report = audit(tmp_path)
    assert report.faults == []
    (note,) = report.notes
    assert note.startswith("trainer-0: the summary of the run does not say how its records end")


def test_a_row_that_was_let_in_has_the_verdicts_of_one(library: Library) -> None:
    """A fault in a contract of a row that was trained, or one contract less, was never written."""
    path = library.path("trainer-0")
    place = place_of(path, Kind.TRAINED)
    record = records_of(path)[place]
    head = read_head(record)
    assert isinstance(head, Trained)
    for contract in head.contracts:
        rest = {name: said for name, said in head.contracts.items() if name != contract}
        for contracts in (rest, {**rest, contract: "version 7 was never made"}):
            changed = with_parts(record, replace(head, contracts=contracts), body_of(record))
            found = faults_after(library, path, partial(rewrite, path, place, changed, Cover.CHAIN))
            texts = [each.text for each in found if each.contract == "training"]
            assert any(text.startswith(f"{contract} is ") for text in texts), (contracts, found)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bit_flips_without_being_found(library: Library, data: st.DataObject) -> None:
    """Bit rot, wherever it is; what lies behind it in the file is still read."""
    path = library.path(data.draw(st.sampled_from(["buffer", "trainer-0"])))
    original = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(original) - 1))
    original[bit // 8] ^= 1 << bit % 8
    found = faults_after(library, path, lambda: path.write_bytes(original))
    assert {"checksum", "chain"} & {each.contract for each in found}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_file_is_cut_without_being_found(library: Library, data: st.DataObject) -> None:
    """A process that ended in order wrote a closing record, so an end can be missed."""
    path = library.path(data.draw(st.sampled_from(["buffer", "trainer-0"])))
    original = path.read_bytes()
    sizes = [len(framed(record)) for record in records_of(path)]
    ends = [sum(sizes[:count]) for count in range(len(sizes))]
    length = data.draw(st.sampled_from(ends) | st.integers(0, len(original) - 1))
    assert faults_after(library, path, lambda: path.write_bytes(original[:length]))


def test_a_removed_file_and_a_removed_record_are_found(library: Library) -> None:
    """Taking a trajectory out leaves a hole in the chain, and words about nobody."""
    path = library.path()
    records = records_of(path)
    place = place_of(path, Kind.ARRIVED)
    without = b"".join(framed(each) for at, each in enumerate(records) if at != place)
    found = faults_after(library, path, lambda: path.write_bytes(without))
    assert "what was between them is gone" in str(found)
    found = faults_after(library, path, lambda: path.write_bytes(b""))
    assert "closing record is missing" in str(found)


def test_a_killed_writer_is_a_note_and_no_fault(tmp_path: Path) -> None:
    """A torn tail is what kill -9 leaves; it is named, and everything before it is good."""
    library = Library(tmp_path).write()
    (tmp_path / "summary.json").unlink()
    path = library.path()
    path.write_bytes(path.read_bytes()[:-20])
    report = audit(tmp_path)
    assert report.faults == []
    assert "no whole record" in str(report.notes)


@pytest.mark.parametrize("name", ["summary.json", "events.jsonl"])
def test_an_audit_that_knows_less_of_the_end_says_so(tmp_path: Path, name: str) -> None:
    """That the closing record must be there is known from these two: a bit in them, and a file
    could be cut unnoticed."""
    library = Library(tmp_path).write()
    with (tmp_path / name).open("ab") as file:
        file.write(b'{"kind": \n')
    report = audit(tmp_path)
    assert report.faults == []
    (note,) = report.notes
    assert note.startswith(f"{name} is damaged (")
    assert note.endswith("whether the end of a file is missing cannot be known")
    path = library.path()
    path.write_bytes(path.read_bytes()[: -len(framed(records_of(path)[-1]))])
    assert len(audit(tmp_path).notes) > 1, "a cut end is a note then"


def test_exit_codes_tell_good_from_bad_from_nothing(
    tmp_path: Path, library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that asks gets 0, 1 or 2, and JSON when it wants."""
    assert main([str(tmp_path)]) == 2
    assert main([str(library.folder), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["num_trajectories"] == 4
    path = library.path()
    original = path.read_bytes()
    path.write_bytes(original[:-1])
    try:
        assert main([str(library.folder)]) == 1
    finally:
        path.write_bytes(original)
    assert "checksum" in capsys.readouterr().out


def test_a_key_is_the_seal_and_is_the_same_for_the_trainer(library: Library) -> None:
    """Buffer and trainer write in files of their own: the key is what holds them together."""
    heads = [read_head(each) for each in records_of(library.path())]
    keys = {head.key for head in heads if isinstance(head, Arrived)}
    assert keys == {key_of(row) for row in library.rows}
