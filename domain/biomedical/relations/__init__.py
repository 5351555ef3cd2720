"""Relations between concepts or mentions of documents with entities: training, scoring, extraction."""
