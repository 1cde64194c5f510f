"""Directory look-up: answer a question by following links through a directory of people."""
