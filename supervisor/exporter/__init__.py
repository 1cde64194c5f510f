"""The run for Prometheus: text over HTTP, from what the supervisor publishes anyway."""
