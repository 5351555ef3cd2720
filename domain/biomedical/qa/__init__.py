"""Questions whose answer stands in a text: read, learnt from, scored and answered."""
