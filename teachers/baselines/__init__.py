"""For comparison with the papers: averaged word vectors, TF-IDF, the BiLSTM of InferSent, the poly-encoder."""
