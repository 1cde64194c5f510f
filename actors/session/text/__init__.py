"""Text to tokens: tokenizer, chat template, rendering, provenance, and the canonical comparison."""
