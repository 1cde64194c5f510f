"""Arithmetic of reasoning-gym, for a model of a tenth of a million parameters."""
