"""What the rollout actor does when the buffer does not take its words."""

from __future__ import annotations

from milepost.actors.effects import Effect, Received, Tell, Unanswered, Wake, Woken
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.messages.buffer import GroupOpened
from milepost.messages.rollout import CreditsGranted, StoreRecovered
from milepost.messages.shared import EpisodeLimits, Prompt, SamplingParams

GROUPS = 8


def rollout() -> Rollout:
    """A rollout actor with `GROUPS` groups out, all of them announced."""
    settings = RolloutSettings(
        seed=0,
        group_size=2,
        groups_per_step=2,
        in_flight_max=2 * GROUPS,
        refill="sample",
        retries_max=1,
        failed="retry",
        lease_s=10.0,
        sampling=SamplingParams(),
        limits=EpisodeLimits(),
        agents={"agent-0": 2 * GROUPS},
        sessions=("session-0",),
        waits_for=frozenset({"store"}),
        checkpoints_named=2,
    )
    order = PromptOrder([Prompt(prompt_id="p", messages=[])], 0, shuffle=False)
    made = Rollout.of(settings, order, Ledger())
    made.start(0.0)
    recovered = StoreRecovered(stored=(), trained={}, groups_spent=0)
    made.handle(Received("buffer", recovered), 0.0)
    effects = made.handle(Received("buffer", CreditsGranted(samples_total=2 * GROUPS)), 0.0)
    assert len(announced(effects)) == GROUPS
    return made


def announced(effects: list[Effect]) -> list[str]:
    """Groups that these effects tell the buffer of."""
    return [
        effect.message.group_id
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.message, GroupOpened)
    ]


def test_many_words_that_fail_at_once_are_said_again_once() -> None:
    """Each group's word failed, and each failure spoke of every group: n words became n squared.

    With the way to the buffer full they failed at once, and again, until nothing else was done.
    """
    core = rollout()
    wakes: list[Wake] = []
    for _ in range(GROUPS):
        effects = core.handle(Unanswered("", "buffer", "the outbox is full"), 5.0)
        assert not announced(effects)
        wakes += [effect for effect in effects if isinstance(effect, Wake)]
    assert {wake.key for wake in wakes} == {"announce"}, "one timer, moved"
    assert all(wake.at_s > 5.0 for wake in wakes), "a full outbox fails at once, so not at once"
    said = announced(core.handle(Woken("announce"), 6.0))
    assert sorted(said) == sorted(core.flight.groups)
    core.validate()
