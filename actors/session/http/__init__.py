"""The HTTP door of a session actor: one address for each conversation, three dialects."""
