"""A corpus as an index, and the sentences of it nearest to a query."""
