"""The small parts around the core: plans, snapshots, sockets, logs, places, summary, display."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.supervisor.runs import Story, beat

from milepost.configs.load import decode
from milepost.messages.supervisor import EventReported, StepRecorded
from milepost.supervisor.folder import FolderInUse, RunFolder
from milepost.supervisor.logs import last_lines, read_piece
from milepost.supervisor.outcome import Cause, RunStatus, Verdict
from milepost.supervisor.plan import children_of
from milepost.supervisor.recording.summary import Scores, summarize
from milepost.supervisor.snapshot import EVENTS_KEPT, Recent, build_snapshot
from milepost.supervisor.sockets import addresses, create_folder, endpoint, remove_folder

RUN: dict[str, Any] = {"run": {"name": "tiny", "steps": 1}}


def test_makers_of_work_stop_first_and_the_slowest_start_first() -> None:
    actors = {
        "rollout": {},
        "agent": {"agent": "m:A", "replicas": 2},
        "session": {},
        "engine": {"replicas": 2, "threads": 3},
        "buffer": {},
        "trainer": {"lr": 1e-3, "ranks": 2},
        "publisher": {},
        "evaluator": {},
    }
    custom = {"judge": {"core": "m:f", "significant": True}}
    plans = children_of(decode({**RUN, "actors": actors, "custom": custom}))
    by_order: dict[int, list[str]] = {}
    for plan in plans:
        by_order.setdefault(plan.order, []).append(plan.name)
    assert by_order == {
        0: ["trainer-0", "trainer-1", "engine-0", "engine-1", "publisher"],
        1: ["buffer", "session-0"],
        2: ["agent-0", "agent-1"],
        3: ["rollout", "evaluator", "judge-0"],
    }
    assert [plan.order for plan in plans] == sorted(plan.order for plan in plans)
    assert [plan.name for plan in plans if plan.significant] == [
        "trainer-0",
        "evaluator",
        "judge-0",
    ]
    assert [plan.name for plan in plans if plan.saves] == ["trainer-0", "trainer-1", "judge-0"]
    assert {plan.name: plan.threads for plan in plans if plan.threads > 1} == {
        "engine-0": 3,
        "engine-1": 3,
    }
    assert {plan.restart.policy for plan in plans if plan.kind == "engine"} == {"permanent"}


def test_a_snapshot_says_of_everybody_what_it_does() -> None:
    story = Story()
    story.up("trainer-0")
    story.say("trainer-0", beat("trainer-0", working_on="waits for begin"))
    story.now_s += 2.0
    recent = Recent()
    recent.note(StepRecorded(source="trainer-0", step=4, metrics={"loss": 0.5}), 1.0)
    snapshot = build_snapshot(story.core.book, recent, {"name": "tiny"}, story.now_s)
    assert snapshot.run["phase"] == "starting"
    assert snapshot.run["step"] == 4
    assert snapshot.run["waiting"].startswith("waiting for 2 of 3: engine-0 (HELLO, 2.0 s of 10 s)")
    doing = {actor["actor"]: actor["working_on"] for actor in snapshot.actors}
    assert doing == {
        "trainer-0": "waits for begin",
        "engine-0": "starts; HELLO is due in 8 s (2.0 s)",
        "rollout": "starts; HELLO is due in 8 s (2.0 s)",
    }
    assert snapshot.last_metrics == {"loss": 0.5}


def test_a_snapshot_counts_the_batches_trained() -> None:
    """The trainer counts its batch from 0, and a resumed run has those of its checkpoint."""
    story = Story()

    def step(recent: Recent, **about: int | None) -> int:
        found = build_snapshot(story.core.book, recent, dict(about), story.now_s).run["step"]
        assert isinstance(found, int)
        return found

    recent = Recent()
    assert step(recent, resumed_from=None) == 0
    assert step(recent, resumed_from=80) == 80
    trained = {"train/step": 99.0, "train/version": 100.0}
    recent.note(StepRecorded(source="trainer-0", step=99, metrics=trained), 1.0)
    recent.note(StepRecorded(source="evaluator", step=98, metrics={"eval/step": 98.0}), 1.0)
    assert step(recent, resumed_from=80) == 100


def test_late_attachers_see_the_last_events_and_memory_stays_bounded() -> None:
    recent = Recent()
    for number in range(EVENTS_KEPT + 7):
        recent.note(EventReported(source="x", kind="k", text=str(number)), 1.0)
    assert [event["text"] for event in recent.events] == [
        str(number) for number in range(7, EVENTS_KEPT + 7)
    ]


def test_sockets_lie_in_a_private_folder_with_a_random_name() -> None:
    one, two = create_folder("run"), create_folder("run")
    try:
        assert one != two
        assert one.stat().st_mode & 0o777 == 0o700
        homes = addresses(one, ["engine-0"])
        assert homes.keys() == {"engine-0", "supervisor"}
        assert homes["engine-0"].endpoint == f"ipc://{one}/engine-0"
    finally:
        remove_folder(one)
        remove_folder(two)
    assert not one.exists()


def test_a_name_too_long_for_a_socket_is_said_with_its_length() -> None:
    with pytest.raises(ValueError, match="has 125 bytes, the system takes 107: shorten"):
        endpoint(Path("/tmp/a"), "x" * 118)


def test_a_runtime_folder_that_is_too_deep_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = create_folder("run")
    remove_folder(folder)
    assert deep not in folder.parents


def test_the_end_of_a_log_is_that_of_the_present_life(tmp_path: Path) -> None:
    """The last lines of a dead actor must not be those of the one before it."""
    path = tmp_path / "a.log"
    assert last_lines(path) == ()
    path.write_text("old trouble\n")
    born = path.stat().st_size
    assert last_lines(path, since=born) == ()
    with path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(40))
    assert last_lines(path, since=born) == tuple(f"line {number}" for number in range(20, 40))


def test_a_piece_of_a_log_says_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789")
    assert read_piece(path, -1, 4) == (b"6789", 10)
    assert read_piece(path, 2, 3) == (b"234", 5)
    assert read_piece(path, 10, 5) == (b"", 10)
    assert read_piece(path, 99, 5) == (b"", 10), "a log that was cut is read from its end"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path / "run")
    yield folder
    folder.close()


def test_a_run_folder_has_one_owner(folder: RunFolder) -> None:
    with pytest.raises(FolderInUse, match="belongs to a run that goes on"):
        RunFolder(folder.path)


def test_what_a_run_began_with_is_written_first(folder: RunFolder) -> None:
    topology = decode({"run": {"name": "tiny", "steps": 1, "seed": 5}})
    folder.write_beginning(topology, ["engine-0"])
    assert 'name = "tiny"' in (folder.path / "topology.toml").read_text()
    text = (folder.path / "versions.json").read_text()
    assert '"seed": 5' in text
    assert '"engine-0": ' in text
    assert '"msgspec": ' in text


def test_a_json_file_is_never_seen_half_written(folder: RunFolder) -> None:
    folder.write_json("summary.json", {"status": "done", "strange": {1, 2}})
    assert [path.name for path in folder.path.glob("summary*")] == ["summary.json"]


def test_the_first_evaluation_is_before_and_the_last_is_after() -> None:
    scores = Scores()
    assert scores.summary() == {"before": None, "after": None, "all": []}
    for version in (0, 3, 9):
        values = {"version": version}
        scores.note(EventReported(source="e", kind="evaluation", text="", values=values))
        scores.note(EventReported(source="e", kind="other", text="", values={}))
    summary = scores.summary()
    assert (summary["before"], summary["after"]) == ({"version": 0}, {"version": 9})
    assert len(summary["all"]) == 3


def test_a_score_that_is_told_again_counts_once_and_a_late_one_is_not_the_last() -> None:
    """An evaluator that starts again cannot know what was heard of its last words."""
    scores = Scores()
    for version in (3, 0, 2, 2):
        values = {"version": version}
        scores.note(EventReported(source="e", kind="evaluation", text="", values=values))
    summary = scores.summary()
    assert summary["after"] == {"version": 3}
    assert summary["all"] == [{"version": 3}, {"version": 0}, {"version": 2}]


def test_a_single_evaluation_of_a_trained_version_is_after() -> None:
    scores = Scores()
    scores.note(EventReported(source="e", kind="evaluation", text="", values={"version": 2}))
    assert scores.summary() == {"before": None, "after": {"version": 2}, "all": [{"version": 2}]}


def test_the_summary_tells_who_was_first() -> None:
    cause = Cause("engine-0", "engine-0 was killed by SIGKILL", None, "SIGKILL", ("a", "b"))
    verdict = Verdict(RunStatus.FAILED, cause, {"running": 2.0}, {}, 7)
    summary = summarize(
        verdict,
        Scores(),
        about={"name": "tiny"},
        restarts={},
        statistics={},
        started_at=1.0,
        ended_at=4.5,
    )
    assert (summary["status"], summary["exit_code"], summary["steps_done"]) == ("failed", 1, 7)
    assert summary["cause"]["signal"] == "SIGKILL"
    assert summary["cause"]["log_tail"] == ["a", "b"]
    assert summary["seconds"] == {"running": 2.0, "total": 3.5}
