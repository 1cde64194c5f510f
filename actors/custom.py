"""Runs an actor of the user's own: `[custom.NAME] core = "module:factory"`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.actors.context import ActorContext


async def run(context: ActorContext) -> None:
    """Make the core with the user's factory and serve it.

    A core that orders `Work` has a method `async def perform(self, work) -> object`.

    Raises:
        ValueError: the import path has no colon.
    """
    path = context.topology.custom[context.spec.kind].core
    module, separator, name = path.partition(":")
    if not separator:
        raise ValueError(f"core {path!r} is not `module:factory`")
    core = getattr(import_module(module), name)(context)
    await context.serve(core, perform=getattr(core, "perform", None))
