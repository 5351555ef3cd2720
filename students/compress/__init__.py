"""Smaller models: vocabulary, layers, neurons and dimensions left out, and graphs for other engines."""
