"""Runs inside an environment of a peer (see benchmarks/peers.py): a folder and sentences to token ids and vectors.

python peer_encode.py MODEL SENTENCES.json VECTORS.npy IDS.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import sentence_transformers
import transformers


def main(model_folder: str, sentences_file: str, vectors_file: str, ids_file: str) -> None:
    sentences = json.loads(Path(sentences_file).read_text(encoding="utf-8"))
    model = sentence_transformers.SentenceTransformer(model_folder, device="cpu")
    ids = [model.tokenize([sentence])["input_ids"][0].tolist() for sentence in sentences]
    np.save(vectors_file, model.encode(sentences, show_progress_bar=False))
    versions = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
    Path(ids_file).write_text(json.dumps({"versions": versions, "ids": ids}))


if __name__ == "__main__":
    main(*sys.argv[1:])
