"""What judging a model leaves beside it, by name, for those who write it and those who show it."""

SCORES = "scores.parquet"
CURVES = "curves.json"
SLICES = "slices.json"
FLOW = "flow.csv"
CONFUSION = "confusion.json"
