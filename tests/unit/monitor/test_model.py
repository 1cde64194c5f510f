"""The merge behind the monitor: it must not lie, whatever comes late, twice, or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.monitor.kit import (
    WALL_S,
    actors,
    event,
    finished,
    going_on,
    heard,
    message,
    snapshot,
    step,
    told,
    with_numbers,
)

from milepost.launch.monitor.model import DEPTHS_MAX, EVENTS_MAX, VERSIONS_MAX
from milepost.launch.monitor.updates import Attached, Copied, Ended, Recorded, Silent

SUMMARY: dict[str, Any] = {
    "status": "done",
    "cause": None,
    "run_id": "abc",
    "steps_done": 80,
    "seconds": {"total": 93.0},
    "ended_at": WALL_S + 93,
    "statistics": {
        "rollout": {"issued": 40, "trained": 40, "dropped": {}, "open": 0, "stored": 0},
        "engine-0": {"version": 80, "rss_mib": 271.0},
        "trainer-0": {"groups_trained": 640},
        "buffer": {"queue": 0, "queue_max": 8},
    },
}


def test_nothing_is_claimed_before_anything_was_told() -> None:
    model = told()
    assert (model.phase, model.step, model.elapsed_s) == ("attaching", 0, 0.0)
    assert model.account is None
    assert {lamp.colour for lamp in model.lamps} == {"grey"}
    assert all(curve.last is None for curve in model.curves.values())


def test_a_snapshot_tells_the_state_of_every_actor_and_of_the_supervisor() -> None:
    model = told(heard())
    names = [row.name for row in model.actors]
    assert names[:2] == ["trainer-0", "engine-0"]
    assert names[-1] == "supervisor"
    engine = model.actor("engine-0")
    assert engine is not None
    assert (engine.depth, engine.depth_max, engine.loop_ms) == (0, 4096, 12.4)
    assert (engine.rss_mib, engine.cpu, engine.restarts) == (40.0, 0.25, 0)
    assert model.account is not None
    assert model.account.balance == 0


def test_the_tightest_link_and_the_oldest_thing_are_shown() -> None:
    """The link with the least room decides when an actor has to wait, not the first one."""
    from unit.monitor.kit import actor, bus, link, mailbox

    links = (link("a", unacked=10), link("b", unacked=250, oldest_age_s=4.5), link("c"))
    busy = actor("session-0", statistics={"bus": bus(*links, box=mailbox(oldest_age_s=2.0))})
    row = told(heard(actors=[busy])).actor("session-0")
    assert row is not None
    assert row.tight is not None
    assert (row.tight.peer, row.tight.free, row.tight.window) == ("b", 6, 256)
    assert row.oldest_s == 4.5


def test_a_late_monitor_knows_the_whole_history() -> None:
    """One that comes after 500 steps shows all of them, not only what follows."""
    steps = tuple(step(number, number / 1000) for number in range(1, 501))
    model = told(Attached(run_id="abc"), Recorded(steps=steps), heard(500))
    curve = model.curves["success"]
    assert len(curve.values) == 500
    assert (curve.values[0], curve.last) == (0.001, 0.5)
    assert model.published[0] == (WALL_S + 1, 1)
    assert model.step == 500


def test_a_step_that_is_read_twice_counts_once() -> None:
    """The open step is read before it is closed, and again when it is."""
    model = told(Recorded(steps=(step(1), step(2))), Recorded(steps=(step(2), step(3))))
    assert [curve.step for curve in model.curves.values() if curve.last is not None] == [3] * 8
    assert len(model.curves["reward"].values) == 3


def test_a_step_without_the_trainer_is_no_step_of_the_curves() -> None:
    """Object 0 holds the first publication and evaluation; the publisher names later ones first."""
    before = {"step": 0, "time": WALL_S, "perf/update_weights_time": 0.1, "eval/step": 0.0}
    half = {"step": 1, "time": WALL_S + 1, "perf/export_time": 0.1}
    model = told(Recorded(steps=(before, half)))
    assert model.published[0] == (WALL_S, 0)
    assert model.curves["success"].last is None
    model.take(Recorded(steps=(step(1, 0.75),)))
    assert model.curves["success"].last == 0.75


def test_a_resumed_run_is_as_fast_as_its_last_life() -> None:
    """Whoever comes late reads the standstill with them, and a monitor that stayed meets it."""
    before = tuple(step(number) for number in range(1, 41))
    gap_s = 3 * 86_400.0
    after = tuple(step(number) | {"time": WALL_S + gap_s + number} for number in range(41, 44))
    begun = event("begun", "all are ready") | {"time": WALL_S + gap_s + 40}
    late = told(Recorded(steps=before + after, events=(begun,)))
    stayed = told(Recorded(steps=before), Recorded(steps=after, events=(begun,)))
    for model in (late, stayed):
        progress = model.progress
        assert (progress.step, progress.step_s, progress.left_s) == (43, 1.0, 37.0)


def test_records_that_were_written_anew_replace_what_was_read() -> None:
    """A resumed run takes the steps after its checkpoint out and does them again."""
    model = told(Recorded(steps=tuple(step(number) for number in range(1, 9))))
    model.take(
        Recorded(steps=(step(1), step(2, 0.9)), events=(event("begun", "again"),), anew=True)
    )
    assert model.curves["success"].values == [0.5, 0.9]
    assert model.step == 2
    assert [one.text for one in model.events] == ["again"]


def test_another_life_of_the_run_begins_with_other_counters() -> None:
    model = going_on()
    assert model.served["engine-0"][-1][1] == 3
    model.take(Attached(run_id="resumed"))
    assert not model.served
    assert not model.depths
    assert model.run_id == "resumed"
    assert model.events, "what happened before the resume still happened"


def test_an_engine_is_drawn_from_when_its_version_changed() -> None:
    model = told(*(heard(version) for version in (1, 1, 2, 4)))
    changes = list(model.served["engine-0"])
    assert [version for _, version in changes] == [1, 2, 4]
    # As of the engine's own heartbeat, not of the snapshot.
    assert changes[0][0] == pytest.approx(WALL_S + 1 - 0.4)


def test_an_engine_that_serves_nothing_yet_has_no_version() -> None:
    """It says -1 until its first weights are confirmed."""
    model = told(heard(actors=[with_numbers("engine-0", version=-1)]))
    assert model.served == {}


def test_silence_is_said_and_the_last_picture_stands() -> None:
    model = going_on()
    model.take(Silent(reason="the supervisor (pid 1) has said nothing for 6 s"))
    assert model.phase == "silent"
    assert model.actors
    model.take(heard(4))
    assert (model.phase, model.silent) == ("running", "")


def test_the_end_is_told_with_its_cause() -> None:
    cause = {"actor": "engine-0", "text": "exited with 1"}
    model = going_on()
    model.take(Ended(summary={**SUMMARY, "status": "failed", "cause": cause, "steps_done": 12}))
    assert model.phase == "failed"
    assert model.ending == "the run has ended: failed after 12 steps; engine-0: exited with 1"
    assert {row.state for row in model.actors} == {"ended"}
    assert model.account is not None
    assert model.account.trained == 40
    assert model.elapsed_s == 93.0


def test_a_run_that_has_ended_long_ago_is_shown_from_its_folder_alone() -> None:
    """No snapshot was ever heard; the summary has what the actors said last."""
    model = told(Recorded(steps=(step(1), step(2))), Ended(summary=SUMMARY))
    assert [row.name for row in model.actors] == list(SUMMARY["statistics"])
    engine = model.actor("engine-0")
    assert engine is not None
    assert (engine.state, engine.rss_mib) == ("ended", 271.0)
    assert model.lamps[0].colour == "green"
    assert model.served["engine-0"][-1][1] == 80


def test_a_guard_that_stopped_the_run_for_its_log_probs_lights_the_lamp() -> None:
    cause = {"actor": "trainer-0", "text": "step 7: mean |trainer - engine| log-prob is 0.3 nats"}
    model = going_on()
    model.take(Ended(summary={**SUMMARY, "status": "guard", "cause": cause}))
    assert model.lamps[2].colour == "red"
    assert "0.3 nats" in model.lamps[2].note


def test_an_evaluation_of_another_shape_is_shown_as_it_is() -> None:
    model = told(Recorded(events=(event("evaluation", "version 3 scored", version="three"),)))
    assert model.events[-1].text == "version 3 scored"


def test_trajectories_are_in_flight_or_have_ended() -> None:
    model = told(heard())
    assert model.trajectories.known() == ["g0000041.0"]
    model.take(Copied(seen=(finished("g0000040.1", 0.25), finished("g0000040.2"))))
    assert model.trajectories.known() == ["g0000041.0", "g0000040.2", "g0000040.1"]
    _, ended = model.trajectories.find("g0000040.1")
    assert ended is not None
    assert (ended.reward, ended.num_tokens, ended.versions) == (0.25, 20, (2, 3))


def test_the_one_that_is_open_is_kept_however_many_end_after_it() -> None:
    model = told(Copied(seen=(finished("g1.0"),)))
    model.trajectories.follow("g1.0")
    for number in range(600):
        model.take(Copied(seen=(finished(f"g{number + 2}.0"),)))
    assert model.trajectories.find("g1.0")[1] is not None
    assert len(model.trajectories.finished) < 600


def test_the_life_of_a_trajectory_has_its_messages_and_their_answers() -> None:
    """An answer does not name the trajectory; it names the question."""
    model = told()
    model.trajectories.follow("g1.0")
    turn = [{"role": "user", "content": "where is kai"}]
    model.take(
        Copied(
            seen=(
                message("agent-0", "session-0", "ChatTurn", 7, trajectory_id="g1.0", messages=turn),
                message("agent-0", "session-0", "ChatTurn", 8, trajectory_id="g2.0", messages=[]),
                message("session-0", "agent-0", "ChatReply", 3, 8, message={"role": "assistant"}),
                message(
                    "session-0",
                    "agent-0",
                    "ChatReply",
                    4,
                    7,
                    message={"role": "assistant", "content": "in the garden"},
                ),
            ),
            dropped=2,
        )
    )
    assert [one.envelope["id"] for one in model.trajectories.life] == [7, 4]
    assert model.trajectories.talk() == [("user", "where is kai"), ("assistant", "in the garden")]
    assert model.trajectories.num_dropped == 2


def test_a_run_of_any_length_takes_bounded_memory() -> None:
    model = told()
    many = range(1, EVENTS_MAX + VERSIONS_MAX)
    events = tuple(event("late", f"{number}") for number in many)
    model.take(Recorded(steps=tuple(map(step, many)), events=events))
    assert len(model.events) == EVENTS_MAX
    assert len(model.published) == VERSIONS_MAX
    assert model.events[-1].number == many[-1]
    told_once = heard()
    for _ in range(DEPTHS_MAX + 10):
        model.take(told_once)
    assert max(map(len, model.depths.values())) <= DEPTHS_MAX
    assert model.served["engine-0"].maxlen == VERSIONS_MAX


def updates() -> st.SearchStrategy[Any]:
    """Anything that a monitor may be told, in any order."""
    numbers = st.integers(0, 30)
    metrics = st.dictionaries(
        st.sampled_from(sorted(step(1))), st.floats(allow_nan=False, width=32), max_size=8
    )
    return st.one_of(
        st.builds(heard, numbers, st.floats(0, 60)),
        st.builds(lambda n: heard(n, actors=actors(n)[: n % 9]), numbers),
        st.builds(lambda n, m: Recorded(steps=({**step(n), **m, "step": n},)), numbers, metrics),
        st.builds(lambda n: Recorded(events=(event("canary", f"step {n}: wrong"),)), numbers),
        st.builds(lambda anew: Recorded(anew=anew), st.booleans()),
        st.just(Silent(reason="no answer")),
        st.just(Ended(summary=SUMMARY)),
        st.just(Ended(summary={"status": "killed"})),
        st.builds(lambda n: Attached(run_id=str(n % 3)), numbers),
        st.builds(lambda n: Copied(seen=(finished(f"g{n}.0"),)), numbers),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(updates(), max_size=20))
def test_no_order_of_updates_breaks_the_picture(found: list[Any]) -> None:
    """Whatever arrives, there is a picture, and it is exactly as large as the screen."""
    from milepost.launch.monitor.ui import Page, Place
    from milepost.launch.monitor.view import view

    model = told(*found)
    for page in (Page.OVERVIEW, Page.QUEUES, Page.EVENTS):
        for width, height in ((80, 24), (120, 40)):
            lines = view(model, Place(page=page, width=width, height=height))
            assert [line.width for line in lines] == [width] * height
    assert math.isfinite(model.elapsed_s)
    assert len(model.lamps) == 4


def test_a_snapshot_without_statistics_is_a_run_that_starts() -> None:
    """Actors that have not beaten yet have no bus, no memory and no numbers."""
    starting = [{**one, "statistics": {}, "heard_s": None, "state": "new"} for one in actors()]
    model = told(heard(0, actors=starting, run={"phase": "starting", "waiting": "waiting for 8"}))
    row = model.actor("buffer")
    assert row is not None
    assert (row.depth, row.tight, row.oldest_s, row.loop_ms) == (None, None, None, None)
    assert snapshot().run["phase"] == "running"


@pytest.mark.parametrize("strange", [None, "x", [], {}, True, float("nan")])
def test_a_damaged_number_of_a_line_ends_no_monitor(strange: object) -> None:
    """The files of a run are as old as the disk they lie on."""
    model = told(
        Recorded(
            steps=({"step": strange, "time": strange},),
            events=({"time": strange, "kind": "begun", "source": "s", "text": ""},),
        ),
        Ended(summary={"ended_at": strange, "statistics": {"agent-0": strange}}),
    )
    assert (model.step, model.events[0].wall_s) == (0, 0.0)
