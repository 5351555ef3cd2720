"""A model folder read by sentence-transformers 3, 5 and 6, and by us: the same token ids and the same vectors?

Claim: in fp32 no figure of any vector differs by 1e-5 or more, for folders written here and for all-MiniLM-L6-v2 as
published. `benchmarks.sts` compares its scores.

    bertrelay run quickstart
    python -m benchmarks.peers --model runs/quickstart/student/latest/model

--model may be given several times. Each version runs in an environment of its own below --environments (`.peers`), with
the torch of this one; what is missing is installed first, which takes minutes and a network. `peers.toml` has the
sentences, in six languages.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encode_peer import environment, read_peers, read_sentences
from benchmarks.harness import Claim, Contender, main
from benchmarks.machine import MINILM
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import ModelSource

DIFFERENCE = 1e-5
LONG = "The same words again and again " * 120


def compare(title: str, model: str, python: Path, scratch: Path) -> Claim:
    encoder = SentenceEncoder.load(model)
    sentences = read_sentences(str(scratch))
    ids, vectors = encoder.tokenize(sentences), encoder.encode(sentences, precision="fp32")
    settings = {"model": model, "scratch": str(scratch), "variant": "default", "ids": True}
    peer = Contender("benchmarks.encode_peer:prepare", [32], python, **settings)
    answer, theirs = peer(0), np.load(scratch / "default.npy")
    peer.end()
    text = f"{title}, {answer['versions']}: ids equal, differences below {DIFFERENCE:g}"
    if theirs.shape != vectors.shape:
        return Claim(text, f"vectors {theirs.shape}, ours {vectors.shape}", False)
    others = sum(mine != other for mine, other in zip(ids, answer["ids"], strict=True))
    largest = float(np.abs(vectors - theirs).max())
    found = f"largest difference {largest:.1e}, other ids in {others} sentences"
    return Claim(text, found, others == 0 and largest < DIFFERENCE)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    minilm, scratch = SentenceEncoder.load(MINILM), options.scratch
    (scratch / "sentences.json").write_text(json.dumps([*read_peers()["sentences"], LONG]), encoding="utf-8")
    minilm.save(scratch / "saved")
    models = {model: str(Path(model).resolve()) for model in options.model}
    models |= {"all-MiniLM-L6-v2": str(ModelSource.parse(MINILM)), "saved by BertRelay": str(scratch / "saved")}
    pythons = [environment(options.environments, version) for version in options.versions]
    claims = [compare(title, model, python, scratch) for title, model in models.items() for python in pythons]
    return claims, {}


if __name__ == "__main__":
    models = {"action": "append", "default": [], "metavar": "DIR", "help": "a folder written by BertRelay"}
    versions = [name for name in read_peers()["packages"] if name[0].isdigit()]
    main(measure, __doc__, model=models, environments=Path(".peers"), versions=versions)
