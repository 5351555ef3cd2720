"""Questions whose answer is a span of a text: read, trained on, scored and answered."""
