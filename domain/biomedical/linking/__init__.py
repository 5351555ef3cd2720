"""Entity linking: dictionaries of concepts, candidates by names and vectors, identifiers of entities, their scores."""
