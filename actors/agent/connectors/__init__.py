"""Environments of other projects as agents: each needs its extra, and is imported by name only."""
