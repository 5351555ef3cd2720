"""Domain adaptation: text, pretraining, terms, clinical outcomes, biomedical entities and answers."""
