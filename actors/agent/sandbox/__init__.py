"""Runs what a policy writes: Python and shell commands in processes that are fenced in."""

from milepost.actors.agent.sandbox.box import Ran, Sandbox, SandboxError, SandboxLimits
from milepost.actors.agent.sandbox.leases import Leases

__all__ = ["Leases", "Ran", "Sandbox", "SandboxError", "SandboxLimits"]
