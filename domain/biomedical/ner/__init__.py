"""Named entity recognition: training, scoring, and tagging texts of any length."""
