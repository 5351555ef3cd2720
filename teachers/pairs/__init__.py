"""Networks that score pairs of sentences: cross-encoders, their training, reranking."""
