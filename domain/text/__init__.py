"""Text: where its sentences begin and end."""
