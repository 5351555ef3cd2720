"""Who stays in a hospital and comes back: the tables of MIMIC made into a cohort with labels and splits."""
