"""The index of an archive as a file: SQLite, opened for writing by one process, or for reading."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

INDEX: Final = "index.sqlite"
VERSION: Final = 1
BUSY_MS: Final = 10_000
"""Readers wait this long for a lock; writers need none of theirs (WAL)."""

SCHEMA: Final = """
CREATE TABLE writers (
    name TEXT PRIMARY KEY, segment INTEGER, offset INTEGER, missed INTEGER DEFAULT 0);
CREATE TABLE trajectories (
    number INTEGER PRIMARY KEY, key TEXT UNIQUE, trajectory_id TEXT, attempt INTEGER,
    group_id TEXT, prompt_id TEXT, status TEXT, verdict TEXT, reason TEXT, reward REAL,
    advantage REAL, step INTEGER, staleness INTEGER, num_tokens INTEGER,
    num_sampled_tokens INTEGER, num_turns INTEGER, mismatch INTEGER, seconds REAL, time REAL,
    group_rewards TEXT, segment INTEGER, offset INTEGER);
CREATE TABLE trained (
    key TEXT PRIMARY KEY, step INTEGER, advantage REAL, staleness INTEGER, time REAL,
    writer TEXT, segment INTEGER, offset INTEGER) WITHOUT ROWID;
CREATE TABLE refused (
    key TEXT, step INTEGER, writer TEXT, segment INTEGER, offset INTEGER);
CREATE VIRTUAL TABLE conversations USING fts5(text, tokenize = 'trigram');
CREATE INDEX by_name ON trajectories (trajectory_id, attempt);
CREATE INDEX by_group ON trajectories (group_id);
CREATE INDEX by_step ON trajectories (step, time);
CREATE INDEX by_time ON trajectories (time);
CREATE INDEX by_segment ON trajectories (segment);
CREATE INDEX refused_by_key ON refused (key);
"""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The index there, or an empty one when it is missing, damaged or of another layout.

    Raises:
        OSError, sqlite3.OperationalError: its folder cannot be written.
    """
    if path.exists():
        base = _connect(f"file:{path}?mode=rw")
        try:
            if _is_usable(base):
                return _prepared(base)
        except sqlite3.Error:
            base.close()
            raise
        base.close()
        remove(path)
    base = _prepared(_connect(f"file:{path}?mode=rwc"))
    base.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
    return base


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """The index there; None when there is none that can be read."""
    if not path.exists():
        return None
    # A file in a folder that cannot be written has nobody who writes it, and needs no lock.
    for options in ("mode=ro", "mode=ro&immutable=1"):
        base = _connect(f"file:{path}?{options}")
        with contextlib.suppress(sqlite3.OperationalError):
            if _is_usable(base):
                return base
        base.close()
    return None


def remove(path: Path) -> None:
    """Remove the index with all that belongs to it: it is made again from the records.

    Raises:
        OSError: its folder cannot be written.
    """
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, wherever in it that was found."""
    return _code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _code(error: sqlite3.Error) -> int:
    # The upper bits say more; what no call of SQLite has raised has none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _connect(uri: str) -> sqlite3.Connection:
    # One thread at a time uses it; it need not be the one that opened it.
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )


def _prepared(base: sqlite3.Connection) -> sqlite3.Connection:
    # It follows from the records: what a power cut takes is read again.
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = OFF")
    return base


def _is_usable(base: sqlite3.Connection) -> bool:
    """Whether it is of this layout.

    Raises:
        sqlite3.OperationalError: somebody keeps it locked, which says nothing against it.
    """
    try:
        version = base.execute("PRAGMA user_version").fetchone()[0]
        base.execute("SELECT name, segment, offset FROM writers").fetchall()
    except sqlite3.DatabaseError as error:
        if _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise
        return False
    return bool(version == VERSION)
