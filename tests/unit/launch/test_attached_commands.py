"""What the attached commands make of a snapshot: lines are compared, no run is needed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from milepost.launch.attach import NotServed, Run
from milepost.launch.commands import prometheus, ps, queues, tail, why
from milepost.launch.commands.tail import whole_lines
from milepost.launch.exits import Exit
from milepost.launch.queues import between, queues_of, with_rates
from milepost.launch.tables import LEFT, RIGHT, seconds, table

RUN: dict[str, Any] = {
    "name": "tiny",
    "phase": "running",
    "phase_s": 75.0,
    "step": 12,
    "steps": 40,
    "folder": "runs/tiny",
    "waiting": "",
    "pid": 4700,
    "statistics": {},
}


def mailbox(**changed: object) -> dict[str, Any]:
    names = ("depth", "peak", "senders", "blocked_senders", "received", "handled", "duplicates")
    rest = ("gaps", "skipped", "refused", "strangers")
    return {**dict.fromkeys((*names, *rest), 0), "max": 4096, "oldest_age_s": 0.0, **changed}


def link(peer: str, **changed: object) -> dict[str, Any]:
    names = ("depth", "peak", "unacked", "sent", "retries", "failed")
    zeros = dict.fromkeys(names, 0)
    return {"peer": peer, "problem": "", "window": 256, "oldest_age_s": 0.0, **zeros, **changed}


def actor(name: str, **changed: object) -> dict[str, Any]:
    return {
        "actor": name,
        "state": "running",
        "state_s": 70.0,
        "pid": 4711,
        "restarts": 0,
        "heard_s": 0.4,
        "progress_s": 0.4,
        "working_on": "waits for a batch since 3 s",
        "finished": False,
        "ports": [],
        "statistics": {},
        **changed,
    }


def bus(box: dict[str, Any], *links: dict[str, Any], failed_inside: int = 0) -> dict[str, Any]:
    loop = {"p99_ms": 1.26}
    told = {"mailbox": box, "links": list(links), "loop": loop, "failed_inside": failed_inside}
    return {"bus": told}


def test_ps_says_where_an_actor_listens_by_itself() -> None:
    actors = [actor("session-0", ports=["http://h:1"]), actor("guests", ports=["tcp://h:2"])]
    assert ps.lines_of(RUN, actors)[-3:] == [
        "",
        "session-0 listens at http://h:1",
        "guests listens at tcp://h:2",
    ]


def test_ps_is_one_line_an_actor() -> None:
    busy = {"rss_mib": 512.3, "cpu_share": 0.97, **bus(mailbox())}
    actors = [
        actor("trainer-0", statistics=busy, finished=True),
        actor("engine-0", state="new", pid=0, heard_s=None, working_on="starts", restarts=2),
    ]
    assert ps.lines_of(RUN, actors) == [
        "tiny  running for 75.0s  step 12 of 40  runs/tiny",
        "",
        "actor       state       pid    for  heard  again  memory   cpu  loop p99  doing",
        (
            "trainer-0   running *  4711  70.0s   0.4s      0     512  0.97       1.3"
            "  waits for a batch since 3 s"
        ),
        "engine-0    new           -  70.0s      -      2       -     -         -  starts",
        "supervisor  running    4700  75.0s   0.0s      0       -     -         -",
    ]


def test_why_puts_the_silent_first_and_shows_the_last_troubles() -> None:
    actors = [actor("trainer-0"), actor("engine-0", heard_s=12.0, working_on="decodes batch 3")]
    events = [
        {"source": "supervisor", "kind": "begun", "text": "all actors are ready"},
        {"source": "agent-0", "kind": "restarted", "text": "agent-0 exited with code 1"},
    ]
    assert list(why.lines_of(RUN, why.chosen(actors, None), events)) == [
        "tiny is running for 75.0s",
        "! engine-0 (running, silent for 12.0s): decodes batch 3",
        "  trainer-0 (running): waits for a batch since 3 s",
        "  agent-0 restarted: agent-0 exited with code 1",
    ]


def test_why_names_the_missing_trajectory_its_agent_its_turn_and_since_when() -> None:
    """One of 512 is missing: which, where, doing what, for how long."""
    waiting = {
        "oldest_missing": [
            {"since_s": 40.0, "trajectory_id": "g7.3", "stage": "running", "owner": "agent-1"},
            {"since_s": 90.0, "trajectory_id": "g9.0", "stage": "queued", "owner": "rollout"},
        ]
    }
    place = {"turn": 22, "at": "agent", "engine": "engine-0", "since_s": 70.0}
    open_ones = {"oldest": [{"trajectory_id": "g7.3", **place}]}
    actors = [actor("rollout", statistics=waiting), actor("session-0", statistics=open_ones)]
    assert list(why.missing_lines(actors, 100.0)) == [
        "  missing g7.3: running at agent-1 for 60.0s; turn 22: its agent works for 30.0s",
        "  missing g9.0: queued at rollout for 10.0s",
    ]
    place |= {"at": "generate"}
    open_ones["oldest"] = [{"trajectory_id": "g7.3", **place}]
    (first, _) = why.missing_lines(actors, 100.0)
    assert first.endswith("turn 22: generate on engine-0 for 30.0s")


def test_why_of_an_unknown_actor_names_the_known_ones() -> None:
    with pytest.raises(NotServed, match="no actor 'engine', there are: engine-0"):
        why.chosen([actor("engine-0")], "engine")


def test_queues_show_what_is_full_with_rates_of_each_actors_own_clock() -> None:
    """Heartbeats come when they come; a rate is over the sender's time, not the reader's."""
    early = bus(mailbox(received=10, handled=10), link("trainer-0", sent=100, unacked=10))
    late = bus(
        mailbox(received=14, handled=12, depth=2, oldest_age_s=4.1, gaps=1, strangers=3),
        link("trainer-0", sent=340, unacked=256, depth=3, peak=5, oldest_age_s=31.2),
        link("engine-0"),
        link("agent-0", sent=1, problem="no mailbox there", retries=7),
        failed_inside=2,
    )
    first = [actor("session-0", statistics={**early, "uptime_s": 10.0})]
    second = [actor("session-0", statistics={**late, "uptime_s": 12.0})]
    spent_s = between(first, second)
    found = with_rates(queues_of(first), queues_of(second), spent_s)
    assert queues.lines_of(found) == [
        "queue                   depth   max  peak  oldest   in/s  out/s  state",
        "session-0 -> trainer-0    259   256     5   31.2s  120.0    0.0  BLOCKED 3",
        (
            "session-0 -> agent-0        0   256     0    0.0s    0.0    0.0"
            "  BROKEN: no mailbox there, 7 repeated"
        ),
        (
            "inbox of session-0          2  4096     0    4.1s    2.0    1.0"
            "  ok, 1 gaps, 3 strangers refused, 2 failed inside"
        ),
    ]


def test_an_actor_that_began_again_has_no_rate_yet() -> None:
    first = [actor("engine-0", statistics={**bus(mailbox(received=500)), "uptime_s": 90.0})]
    second = [actor("engine-0", statistics={**bus(mailbox(received=3)), "uptime_s": 1.0})]
    spent_s = between(first, second)
    (queue,) = with_rates(queues_of(first), queues_of(second), spent_s)
    assert (queue.num_in, queue.in_per_s) == (3, 0.0)


def test_lines_are_whole_however_the_pieces_are_cut() -> None:
    rest, lines = b"", []
    for piece in (b"one\ntw", b"o", b"\n", b"three"):
        found, rest = whole_lines(rest, piece)
        lines += found
    assert (lines, rest) == (["one", "two"], b"three")


def test_tables_align_and_keep_the_last_column_free() -> None:
    assert table(
        (("a", LEFT), ("n", RIGHT), ("text", LEFT)), [("xx", "100", ""), ("y", "7", "z")]
    ) == [
        "a     n  text",
        "xx  100",
        "y     7  z",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.04, "0.0s"), (99.94, "99.9s"), (100.0, "2m"), (7200.0, "2.0h")],
)
def test_times_have_three_digits(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_metrics_of_a_run_on_another_machine_are_served_over_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snapshots are published on its own machine alone: every scrape would find it silent."""
    distant = Run(Path("/tmp/ticket.json"), "ab", "tcp://10.0.0.1:5", "", 0)
    monkeypatch.setattr(prometheus, "find_run", lambda _: distant)
    asked = Namespace(listen="127.0.0.1:0", key_file=None, run="/tmp/ticket.json")
    assert prometheus.run(asked) == Exit.REFUSED
    assert "is of a run elsewhere" in capsys.readouterr().err


def test_the_last_lines_of_a_run_that_ended_between_two_questions_are_read_from_its_folder(
    tmp_path: Path,
) -> None:
    """They say why it ended; on another machine there is only the ticket, and nothing to read."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rollout.log").write_text("told\nRO-3 (ledger): 5 != 4\n")
    (tmp_path / "events.jsonl").write_text("{}\n")
    assert tail.unread(tmp_path, "rollout", 5) == b"RO-3 (ledger): 5 != 4\n"
    assert tail.unread(tmp_path, "events", 0) == b"{}\n"
    assert tail.unread(tmp_path / "events.jsonl", "rollout", 0) == b""
