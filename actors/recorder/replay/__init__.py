"""Recorded events through the same pure core once more, and its decisions compared."""
