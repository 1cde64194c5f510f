"""The rollout actor: when it sends prompts out, and where each of them is afterwards."""

from __future__ import annotations

from unit.rollout.kit import Play, settings

from milepost.actors.effects import Answered, Request, Unanswered
from milepost.actors.rollout.bookkeeping import CompactJournal, WriteRecords
from milepost.actors.rollout.flight import OLDEST_MAX
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.records import Issued
from milepost.messages.agent import CancelEpisode, RunEpisode
from milepost.messages.buffer import CheckpointSaved, GroupOpened, IssueEnded
from milepost.messages.rollout import (
    CreditsGranted,
    EvaluationFinished,
    GroupDropped,
    GroupsTrained,
    LedgerReport,
    LedgerRequested,
    StoreRecovered,
)
from milepost.messages.session import AbandonTrajectory, SessionsOpened
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

DRAIN = Request("supervisor", 1)


def test_nothing_goes_out_before_store_version_and_evaluation_came() -> None:
    """The first score is of the untrained policy; it must not race with training rollouts."""
    play = Play(settings(waits_for=frozenset({"store", "version", "evaluation"})))
    play.begin()
    assert play.running() == []
    assert "evaluation, version" in play.core.working_on()
    play.hear("publisher", VersionPublished(version=0))
    play.hear("evaluator", EvaluationFinished(version=0))
    assert len(play.running()) == 3


def test_members_of_a_group_share_prompt_and_environment_but_not_the_sampling_seed() -> None:
    play = Play(settings(agents={"agent-0": 9})).begin(granted=2)
    first, second = play.take(RunEpisode)
    assert first.prompt == second.prompt
    assert first.seed == second.seed
    specs = play.take(GroupOpened)
    assert [spec.size for spec in specs] == [2]


def test_the_budget_counts_trajectories_and_a_finished_one_frees_its_place() -> None:
    """Refill by sample: two free places make a new group, though no group is complete."""
    play = Play(settings()).begin()
    assert play.running() == [("g0000000.0", 0), ("g0000000.1", 0), ("g0000001.0", 0)]
    play.end("g0000000.0")
    assert play.running() == [("g0000001.1", 0)]
    play.end("g0000001.0")
    assert play.running() == [("g0000002.0", 0)]


def test_refill_by_group_waits_for_the_whole_group() -> None:
    play = Play(settings(refill="group", agents={"agent-0": 9})).begin()
    assert len(play.running()) == 4
    play.end("g0000000.0")
    play.end("g0000001.0")
    assert play.running() == []
    play.end("g0000000.1")
    assert play.running() == [("g0000002.0", 0), ("g0000002.1", 0)]


def test_credits_bound_the_groups_that_are_not_trained() -> None:
    """The buffer grants room: a group is only sent out if it has a place there when it is done."""
    play = Play(settings(agents={"agent-0": 9}, in_flight_max=100)).begin(granted=4)
    assert len(play.running()) == 4
    play.hear("buffer", CreditsGranted(samples_total=2))
    play.hear("buffer", CreditsGranted(samples_total=4))
    assert play.running() == []
    play.hear("buffer", CreditsGranted(samples_total=6))
    assert len(play.running()) == 2


def test_a_dropped_group_gives_its_credit_back_unless_it_was_in_a_batch() -> None:
    play = Play(settings(agents={"agent-0": 9}, in_flight_max=100)).begin(granted=4)
    play.running()
    dropped = GroupDropped(group_id="g0000000", reason="zero_spread", retry=False)
    play.hear("buffer", dropped)
    assert play.running() == [("g0000002.0", 0), ("g0000002.1", 0)]
    play.store("g0000001")
    refused = GroupDropped(group_id="g0000001", reason="C1", retry=False, consumed=True)
    play.hear("buffer", refused)
    assert play.running() == []


def test_a_retried_group_is_the_same_prompt_under_a_new_name() -> None:
    play = Play(settings(agents={"agent-0": 9}, in_flight_max=100)).begin(granted=4)
    prompts = {one.group_id: one.prompt_id for one in play.take(GroupOpened)}
    play.running()
    play.store("g0000001")
    play.hear("buffer", GroupDropped(group_id="g0000001", reason="stale", retry=True))
    assert play.running() == [("g0000001r1.0", 0), ("g0000001r1.1", 0)]
    (opened,) = play.take(GroupOpened)
    assert opened.prompt_id == prompts["g0000001"]


def test_what_still_runs_for_a_complete_group_is_stopped() -> None:
    """A member lost on its way and sampled again, while the first one arrived after all."""
    play = Play(settings(agents={"agent-0": 9})).begin(granted=2)
    play.store("g0000000")
    stopped = {one.trajectory_id for one in play.take(CancelEpisode)}
    assert stopped == {"g0000000.0", "g0000000.1"}
    assert {one.trajectory_id for one in play.take(AbandonTrajectory)} == stopped


def test_the_ledger_names_what_is_in_flight_and_who_has_it() -> None:
    play = Play(settings()).begin(granted=6)
    play.end("g0000000.0")
    play.end("g0000000.1")
    play.store("g0000000")
    play.hear("monitor", LedgerRequested(), Request("monitor", 1))
    (report,) = play.replies
    assert isinstance(report, LedgerReport)
    assert report.balanced
    assert report.issued == 3
    states = {entry["group_id"]: (entry["owner"], entry["state"]) for entry in report.in_flight}
    assert states["g0000000"] == ("buffer", "stored")
    assert states["g0000001"][0] == "agent-0"


def test_trained_groups_close_the_account() -> None:
    play = Play(settings()).begin(granted=2)
    play.store("g0000000")
    play.hear("buffer", GroupsTrained(group_ids=("g0000000",), step=0, version=1))
    play.hear("buffer", GroupsTrained(group_ids=("g0000000",), step=0, version=1))
    ledger = play.core.book.ledger
    assert (ledger.num_issued, ledger.num_trained) == (1, 1)


# ---- restarts ----------------------------------------------------------------------------


def test_a_restarted_buffer_says_what_it_has_and_the_rest_is_sampled_again() -> None:
    play = Play(settings(agents={"agent-0": 9})).begin(granted=4)
    play.end("g0000000.0")
    play.store("g0000001")
    play.running()
    play.hear("buffer", StoreRecovered(stored=("g0000001",), trained={}, groups_spent=0))
    assert play.running() == [("g0000000.0", 1)]
    assert list(play.core.book.ledger.stored) == ["g0000001"]


def test_a_group_that_the_buffer_lost_goes_out_again_as_credits_allow() -> None:
    play = Play(settings(agents={"agent-0": 9})).begin(granted=2)
    play.store("g0000000")
    play.running()
    play.hear("buffer", StoreRecovered(stored=(), trained={}, groups_spent=0))
    assert play.running() == []
    play.hear("buffer", CreditsGranted(samples_total=2))
    assert play.running() == [("g0000000.0", 1), ("g0000000.1", 1)]


def test_a_new_incarnation_goes_on_where_the_journal_ends() -> None:
    """Attempts count from elsewhere, so the dead one's episodes cannot be taken for ours."""
    ledger = Ledger()
    ledger.apply(Issued(group="g0000000", position=0))
    play = Play(settings(agents={"agent-0": 9}, attempt_first=1000), ledger).begin(granted=4)
    members = ("g0000000.0", "g0000000.1", "g0000001.0", "g0000001.1")
    assert play.running() == [(member, 1001) for member in members]
    play.end("g0000000.0", 0)
    assert play.core.flight.counters.late_duplicates == 1


def test_counts_of_both_sides_may_differ_by_a_constant() -> None:
    """A buffer without a journal counts from zero after a resume; credits still mean room."""
    ledger = Ledger()
    ledger.apply(Issued(group="g0000000", position=0))
    play = Play(settings(agents={"agent-0": 9}), ledger)
    ledger.resume(1, ["g0000000"])
    play.begin(granted=2)
    assert play.running() == [("g0000001.0", 0), ("g0000001.1", 0)]


def test_a_group_of_the_buffer_that_was_never_written_down_here_is_adopted() -> None:
    """A power cut took our last records; the prompt must not go out a second time."""
    play = Play(settings(agents={"agent-0": 9}))
    play.hear("buffer", StoreRecovered(stored=("g0000000",), trained={}, groups_spent=0))
    play.hear("buffer", CreditsGranted(samples_total=4))
    assert play.running() == [("g0000001.0", 0), ("g0000001.1", 0)]


# ---- journal and drain -------------------------------------------------------------------


def test_records_are_synced_with_a_checkpoint_and_compacted_when_there_are_many() -> None:
    play = Play(settings()).begin(granted=2)
    play.hear("trainer-0", CheckpointSaved(step=1, folder=""))
    written = play.works.pop()
    assert isinstance(written, WriteRecords)
    assert written.sync
    play.core.book._num_written = 10**6
    play.hear("trainer-0", CheckpointSaved(step=2, folder=""))
    assert isinstance(play.works.pop(), CompactJournal)


def test_a_drain_stops_what_runs_waits_for_what_is_delivered_and_loses_nothing() -> None:
    play = Play(settings()).begin()
    play.answers = False
    play.end("g0000000.0")
    play.hear("supervisor", Drain(deadline_s=30.0), DRAIN)
    assert play.take(IssueEnded)
    stopped = sorted(one.trajectory_id for one in play.take(CancelEpisode))
    assert stopped == ["g0000000.1", "g0000001.0", "g0000001.1"]
    for trajectory_id in stopped:
        play.end(trajectory_id, good=False)
    assert play.replies == []
    play.answer_all()
    assert play.replies == [Drained(actor="rollout")]
    assert sorted(play.core.book.ledger.open) == ["g0000000", "g0000001"]


def test_a_drain_ends_at_its_deadline_whoever_is_silent() -> None:
    play = Play(settings()).begin()
    play.hear("supervisor", Drain(deadline_s=30.0), DRAIN)
    assert play.replies == []
    play.wake("drain")
    assert play.replies == [Drained(actor="rollout")]


# ---- peers -------------------------------------------------------------------------------


def test_episodes_of_a_dead_agent_are_sampled_again_after_a_pause() -> None:
    play = Play(settings()).begin(granted=2)
    play.running()
    play.hear("supervisor", PeerRestarted(actor="agent-0", incarnation=1))
    assert play.running() == []
    play.wake_all()
    assert sorted(play.running()) == [("g0000000.0", 1), ("g0000000.1", 1)]


def test_a_dead_session_takes_unfinished_rows_with_it_but_not_delivered_ones() -> None:
    play = Play(settings()).begin(granted=2)
    play.end("g0000000.0")
    play.running()
    play.hear("supervisor", PeerRestarted(actor="session-0", incarnation=1))
    play.wake_all()
    assert play.running() == [("g0000000.1", 1)]


def test_an_episode_that_no_agent_took_is_sent_again() -> None:
    play = Play(settings()).begin(granted=2)
    play.running()
    play.feed(Unanswered("run/g0000000.1/0", "agent-0", "not taken"))
    play.wake("again/g0000000.1")
    assert play.running() == [("g0000000.1", 1)]


def test_an_episode_carries_the_address_of_its_own_session() -> None:
    """A harness talks to that address: a neighbour's would train its words on another's row."""
    play = Play(settings(agents={"agent-0": 9}), answers=False).begin(granted=2)
    [(key, ask)] = play.asked.items()
    names = [spec.trajectory_id for spec in ask.message.sessions]  # type: ignore[attr-defined]
    urls = tuple(f"http://127.0.0.1:1/sessions/{name}" for name in names)
    play.feed(Answered(key, ask.to, SessionsOpened(addresses=urls)))
    sent = {one.trajectory_id: one.address for one in play.take(RunEpisode)}
    assert sent == dict(zip(names, urls, strict=True))


def test_a_heartbeat_names_the_trajectories_that_are_out_for_longest() -> None:
    """A person who asks what a run waits for wants names, and not ten thousand of them."""
    play = Play(settings()).begin()
    oldest = play.core.statistics()["oldest"]
    assert isinstance(oldest, list)
    assert 0 < len(oldest) <= OLDEST_MAX
    assert [one["since_s"] for one in oldest] == sorted(one["since_s"] for one in oldest)
    names = {name for name, _ in play.running()}
    assert {one["trajectory_id"] for one in oldest if one["stage"] == "running"} <= names
    assert all(one["owner"].startswith(("agent-", "session-", "rollout")) for one in oldest)
