"""Recipes, the runner, the command line and the report."""
