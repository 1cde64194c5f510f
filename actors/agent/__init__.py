"""The agent actor: user code runs here, one coroutine for each episode."""

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.errors import (
    ChatError,
    EpisodeStopped,
    LimitReached,
    RequestRefused,
    ServiceFailed,
)
from milepost.actors.agent.reply import Call, Part, Reply
from milepost.actors.agent.reward import RewardInput, RewardResult
from milepost.messages.shared import (
    ChatMessage,
    EpisodeLimits,
    FinishReason,
    Prompt,
    Purpose,
    Usage,
)

__all__ = [
    "Agent",
    "Call",
    "ChatError",
    "ChatMessage",
    "Episode",
    "EpisodeLimits",
    "EpisodeStopped",
    "FinishReason",
    "LimitReached",
    "Part",
    "Prompt",
    "Purpose",
    "Reply",
    "RequestRefused",
    "RewardInput",
    "RewardResult",
    "ServiceFailed",
    "Usage",
]
