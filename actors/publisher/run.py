"""The publisher's hands: none of its own. Everything it does is messages."""

from __future__ import annotations

from milepost.actors.context import ActorContext
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.settings import PublisherSettings


async def run(context: ActorContext) -> None:
    """Serve until stopped."""
    settings = PublisherSettings.of(context.topology)
    await context.serve(Publisher.of(settings), facts={"engines": list(settings.engines)})
