"""What must not pass from one split to another: subjects, texts, near-duplicates."""
