"""Filters: built in, of the user's own, and wrong ones named before the run starts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from unit.buffer.kit import Play, group, row, settings

from milepost.actors.buffer.candidates import Candidate
from milepost.actors.buffer.filters import FilterError, first_reason, load_filters
from milepost.actors.buffer.groups import About, complete_group
from milepost.actors.buffer.run import FilterHand
from milepost.actors.buffer.work import JudgeGroup
from milepost.messages.buffer import GroupOpened, TrajectoryFinished
from milepost.messages.rollout import GroupDropped, GroupStored
from milepost.messages.shared import Status


def candidate(*rewards: float, about: About | None = None) -> Candidate:
    return Candidate.of(group("g0", 3, rewards=rewards), about or About(), 5)


def test_a_group_without_spread_teaches_nothing() -> None:
    filters = load_filters(("zero_spread",))
    assert first_reason(filters, candidate(1.0, 1.0, 1.0)) == "zero_spread"
    assert first_reason(filters, candidate(1.0, 0.0)) == ""


def test_the_first_filter_that_drops_gives_the_reason() -> None:
    def too_easy(candidate: Candidate) -> str:
        return "too_easy" if min(candidate.rewards) > 0.5 else ""

    filters = (too_easy, *load_filters(("zero_spread",)))
    assert first_reason(filters, candidate(1.0, 1.0)) == "too_easy"
    assert first_reason(filters, candidate(0.0, 0.0)) == "zero_spread"


def test_a_filter_that_answers_anything_but_text_is_refused() -> None:
    """True and False would mean opposite things to two readers."""

    def keep(candidate: Candidate) -> str:
        return bool(candidate.rewards)  # type: ignore[return-value]

    with pytest.raises(FilterError, match=r"filter keep answered True for g0 with rewards \[0.0\]"):
        first_reason((keep,), candidate(0.0))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zero_spraed", "unknown filter 'zero_spraed', built in are zero_spread"),
        ("nowhere_at_all:keep", "No module named"),
        ("json:keep", "module json has no function keep"),
    ],
)
def test_a_filter_that_is_not_there_is_named(name: str, said: str) -> None:
    with pytest.raises(FilterError, match=said):
        load_filters((name,))


def test_filters_that_keep_nothing_end_the_run_by_name() -> None:
    """What they drop is sampled again: a solved task under `zero_spread` would go on for ever."""
    given = settings(filters=load_filters(("zero_spread",)), filtered_in_a_row_max=3)
    play = Play(given)
    for name in ("g0", "g1", "g2", "g3", "g4"):
        # One that is kept is proof that the filters can be passed.
        play.put(name, rewards=(0.0, 1.0) if name == "g2" else (1.0, 1.0))
    assert not play.failed
    play.put("g5", rewards=(1.0, 1.0))
    assert play.failed.startswith(
        "actors.buffer.filters dropped 3 groups in a row and kept none (3 by zero_spread), "
        "guard.groups_filtered_in_a_row_max is 3"
    )


def test_without_the_bound_filters_may_drop_for_ever() -> None:
    play = Play(settings(filters=load_filters(("zero_spread",))))
    for at in range(50):
        play.put(f"g{at}", rewards=(1.0, 1.0))
    assert not play.failed


def test_a_filter_sees_numbers_and_names_of_the_group_and_no_token() -> None:
    """Its cost is bounded by the number of members, however long their conversations are."""
    members = (
        (row("g0.0", 3, 4, tokens=2, reward=1.0, metrics={"turns": 2.0}),),
        (row("g0.1", 4, tokens=5, reward=0.0, status=Status.TRUNCATED),),
    )
    about = About(label="blue", metadata={"level": 3})
    seen = Candidate.of(complete_group("g0", members), about, 6)
    assert (seen.rewards, seen.statuses) == ((1.0, 0.0), (Status.COMPLETED, Status.TRUNCATED))
    assert (seen.num_tokens, seen.num_sampled_tokens) == ((5, 6), (4, 5))
    assert (seen.oldest_version, seen.newest_version, seen.age) == (3, 4, 3)
    assert (seen.label, seen.metadata, seen.metrics) == ("blue", {"level": 3}, ({"turns": 2.0}, {}))
    assert load_filters(("truncated",))[0](seen) == "truncated"


def test_a_filter_of_the_users_own_is_called_off_the_loop_and_knows_the_prompt() -> None:
    """The buffer answers batches meanwhile, and the group counts as here all the while."""

    def level(candidate: Candidate) -> str:
        return "" if candidate.metadata["level"] > 1 else "too_low"

    play = Play(settings(filters=(level,)), writes=False)
    for name, wanted in (("g0", 1), ("g1", 2)):
        opened = GroupOpened(group_id=name, prompt_id="p", size=1, metadata={"level": wanted})
        play.hear(opened, "rollout")
        play.hear(TrajectoryFinished(trajectory=row(f"{name}.0", 1)), "session-0")
    assert play.take(GroupStored) == []
    works = [each for each in play.works if isinstance(each, JudgeGroup)]
    assert [first_reason(each.filters, each.candidate) for each in works] == ["too_low", ""]
    assert play.core.courier.recovered().stored == ("g0", "g1"), "or they would be sampled again"
    for each in works:
        play.finish(each)
    assert [each.group_id for each in play.take(GroupStored)] == ["g1"]
    assert [(each.group_id, each.reason) for each in play.take(GroupDropped)] == [("g0", "too_low")]


def test_a_filter_that_breaks_ends_the_run_with_its_words() -> None:
    play = Play(settings(filters=(lambda _: "",)), writes=False)
    play.put("g0", rewards=(0.0, 1.0))
    play.finish(play.works[0], error="KeyError: 'level'")
    assert "failed on g0: KeyError: 'level'" in play.failed


async def test_a_filter_that_never_answers_is_named_at_its_deadline(request: Any) -> None:
    """It holds up a thread of its own; the loop, and with it the heartbeat, goes on."""
    release = threading.Event()
    request.addfinalizer(release.set)

    def forever(candidate: Candidate) -> str:
        release.wait()
        return candidate.group_id

    work = JudgeGroup("judge/g0", candidate(1.0), (forever,))
    hand = FilterHand(0.05)
    with pytest.raises(FilterError, match=r"forever did not answer within .*filter_deadline_s"):
        await hand.perform(work)
    release.set()
    hand.close()


async def test_the_wait_for_the_groups_before_it_is_none_of_a_groups_deadline(
    monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """A batch that completes all at once would else end the run, with filters that are fast."""
    release, timed = threading.Event(), []
    request.addfinalizer(release.set)
    real = asyncio.wait

    async def wait(calls: Any, **fields: Any) -> Any:
        timed.append(calls)
        return await real(calls, **fields)

    def held(candidate: Candidate) -> str:
        return "" if release.wait(60.0) else candidate.group_id

    monkeypatch.setattr(asyncio, "wait", wait)
    hand = FilterHand(60.0)
    works = [JudgeGroup(f"judge/g{number}", candidate(1.0), (held,)) for number in range(2)]
    calls = [asyncio.ensure_future(hand.perform(work)) for work in works]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(timed) == 1, "the clock of the second one runs"
    release.set()
    assert await asyncio.gather(*calls) == ["", ""]
    assert len(timed) == 2
    hand.close()
