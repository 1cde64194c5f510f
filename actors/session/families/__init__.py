"""Chat-template families: boundary repair, stop tokens, parsers."""
