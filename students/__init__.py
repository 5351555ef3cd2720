"""Multilingual students: parallel corpora, distillation, scores across languages."""
