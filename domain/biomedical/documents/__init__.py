"""Annotated documents: what they hold, and the formats in which they are read and written."""
