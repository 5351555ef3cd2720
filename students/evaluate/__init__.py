"""Scores of a student: translation accuracy, distance to the teacher, retrieval, mining, verdicts."""
