"""What becomes of a patient, as a BERT reads it from the notes: learnt, judged, scored, explained."""
