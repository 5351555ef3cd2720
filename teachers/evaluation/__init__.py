"""Evaluation of sentence encoders: similarity test sets, tasks of mteb."""
