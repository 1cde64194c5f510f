"""The embedded torch engine: continuous batching over one static KV cache."""
