"""The archive of a run: every trajectory that reached the buffer, and what became of it."""
