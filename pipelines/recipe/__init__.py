"""Recipes: their text, validation, and the steps they describe."""
