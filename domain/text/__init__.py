"""Text: its sentences, its words, and windows over long sequences of them."""
