"""Sources of hospital data: each gives its stays and its notes in one form, `form.py`."""
