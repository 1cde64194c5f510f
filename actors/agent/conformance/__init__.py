"""Runs any agent offline against a scripted engine, and says in words what it does wrong."""
