"""The engine actor: one inference engine behind the bus."""
