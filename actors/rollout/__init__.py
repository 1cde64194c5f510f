"""The rollout actor: prompts, credits and the ledger."""
