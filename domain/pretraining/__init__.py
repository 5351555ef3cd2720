"""Continued pretraining: masked words and next sentences, on notes and on papers."""
