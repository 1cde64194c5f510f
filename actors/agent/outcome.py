"""The verdict on an episode: from what happened to exactly one `EpisodeEnded`.

In order, the first that holds:

1. aborted    the run stopped it
2. failed     the agent's code raised, other than by a bound it ran into
3. failed     the model never replied: an empty sample is an error, not a sample
4. failed     session or engine could not serve the newest request
5. failed     a report was no finite number
6. failed     nobody gave a reward
7. truncated  a bound of the run ended it, or cut off its last reply
8. completed
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from milepost.actors.agent.errors import EpisodeStopped, GuestCodeFailed, LimitReached
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.shared import Purpose, Status

if TYPE_CHECKING:
    from milepost.actors.agent.episode import Record
    from milepost.actors.agent.reward import RewardResult
    from milepost.messages.agent import RunEpisode

CAUSE_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Ending:
    """How the agent's code ended."""

    error: str = ""
    """What it raised, and where."""
    limit: str = ""
    """The bound that it let end the episode, or that ended it from outside."""
    stopped: str = ""
    """Why the run stopped it."""


def read_ending(error: BaseException | None) -> Ending:
    """How code ended that raised `error`, or returned."""
    match error:
        case None:
            return Ending()
        case LimitReached():
            return Ending(limit=error.limit)
        case EpisodeStopped():
            return Ending(stopped=str(error))
        case GuestCodeFailed():
            # Where it was raised here tells nothing; where it was raised there is in the text.
            return Ending(error=str(error)[:CAUSE_CHARS_MAX])
        case _:
            return Ending(error=tell_error(error))


def tell_error(error: BaseException) -> str:
    """Type, text and place of an exception, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {text[:CAUSE_CHARS_MAX]}{place}"


def truncated_by(ending: Ending, record: Record) -> str:
    """The bound that makes an episode truncated; empty when it came to its own end."""
    return ending.limit or record.limit or record.cut_by


def may_have_reward(ending: Ending, record: Record) -> bool:
    """Whether rules 1 and 2 leave it open; False: what else is known of it decides nothing."""
    return not (ending.stopped or record.stopped or ending.error)


def fault_of(ending: Ending, record: Record) -> tuple[Status, str] | None:
    """Why the episode has no reward, rules 1 to 5; None when it may have one."""
    if ending.stopped or record.stopped:
        return Status.ABORTED, ending.stopped or record.stopped
    if ending.error:
        return Status.FAILED, ending.error
    if record.service_fault and not record.num_turns:
        return Status.FAILED, record.service_fault
    if not record.num_turns:
        limit = truncated_by(ending, record)
        before = f"{limit} was reached before the first reply" if limit else "it called no chat"
        return Status.FAILED, f"the episode has no reply of the model: {before}"
    if record.service_fault:
        return Status.FAILED, record.service_fault
    if record.bad_report:
        return Status.FAILED, record.bad_report
    return None


def judge(
    order: RunEpisode,
    ending: Ending,
    record: Record,
    seconds: float,
    *,
    result: RewardResult | None = None,
    reward_fault: str = "",
) -> EpisodeEnded:
    """The verdict.

    Args:
        order: the episode.
        ending: how the agent's code ended.
        record: what the episode came to.
        seconds: how long it took.
        result: of a reward function of its own, which then counts instead of a reported reward.
        reward_fault: why that function gave none.
    """
    limit = truncated_by(ending, record)
    reward = result.reward if result else record.reward
    fault = fault_of(ending, record)
    if fault is None and reward_fault:
        fault = Status.FAILED, reward_fault
    if fault is None and reward is None:
        cause = "the agent reported no reward"
        fault = Status.FAILED, f"{cause} before {limit} ended the episode" if limit else cause
    if fault is not None:
        (status, cause), reward = fault, None
    else:
        status, cause = (Status.TRUNCATED, limit) if limit else (Status.COMPLETED, "")
    info: dict[str, Any] = dict(record.info)
    if order.purpose is Purpose.EVALUATE:
        info.setdefault("messages", record.conversation)
    return EpisodeEnded(
        trajectory_id=order.trajectory_id,
        attempt=order.attempt,
        status=status,
        reward=reward,
        cause=cause,
        metrics={**record.metrics, **(result.metrics if result else {})},
        info=info,
        num_turns=record.num_turns,
        seconds=seconds,
        generation=record.generation or None,
        received=tuple(sorted(record.received)),
    )
