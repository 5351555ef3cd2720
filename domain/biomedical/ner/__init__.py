"""Named entities: learnt, scored, and found in texts of any length."""
