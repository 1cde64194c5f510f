"""A Qwen3-architecture model of 0.12 M parameters, with a tokenizer made for its task."""
