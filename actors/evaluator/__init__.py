"""The evaluator actor: held-out scores attributed to the exact weight version."""
