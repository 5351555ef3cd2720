"""English sentence encoders: objectives, training, evaluation."""
