"""Advantages, policy losses, importance corrections and their aggregation."""
