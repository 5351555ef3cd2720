"""Parallel text: files of translations, filters, cleaning, and the corpus a student is trained on."""
