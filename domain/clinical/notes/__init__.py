"""What was written of a stay: notes read, put together, cleaned, and cut into chunks."""
