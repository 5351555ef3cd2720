"""Model cards for every kind of model folder, from recorded facts."""
