"""Search: exact and approximate nearest neighbours, and the index of a corpus."""
