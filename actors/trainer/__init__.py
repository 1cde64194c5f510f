"""The trainer actor: batches in, weight versions out."""
