"""Treasure hunt: walk to a hidden treasure by hints, and dig there."""
