"""Smaller models: fewer pieces, layers or dimensions."""
