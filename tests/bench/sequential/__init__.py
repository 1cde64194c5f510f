"""The plain rival of the quick start: one process, one loop, nothing but torch."""
