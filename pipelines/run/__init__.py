"""Runs of recipes: planning, running, the folders of results, several processes."""
