"""BERTs carried into domains: clinics and laboratories."""
