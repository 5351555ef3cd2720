"""Text of every language: its sentences and words, and windows over long ones."""
