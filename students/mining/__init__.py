"""Bitext mining: which sentences of two sides translate one another."""
