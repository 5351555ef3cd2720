"""Everything that only repeats the SBERT paper: its test sets, ablation and baselines."""
