"""The session actor: the one authority on tokens."""
