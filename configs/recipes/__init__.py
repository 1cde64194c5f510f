"""Recipes: topologies and the tasks they train."""
