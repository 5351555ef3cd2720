"""Distillation: the targets, the start of a student, its losses and its training."""
