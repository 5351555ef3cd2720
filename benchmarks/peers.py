"""A model folder read by sentence-transformers 3, 5 and 6, and by us: the same token ids and the same vectors?

Claim: in fp32 no figure of any vector differs by 1e-5 or more, for folders written here and for all-MiniLM-L6-v2 as
published. `benchmarks.sts` compares its scores.

    bertrelay run quickstart
    python -m benchmarks.peers --model runs/quickstart/student/latest/model

--model may be given several times. Each version runs in an environment of its own below --environments (`.peers`), with
the torch of this one; what is missing is installed first, which takes minutes and a network. The sentences are in six
languages, with accents, ligatures, odd spaces, an empty one, and one longer than any model takes. None begins or ends
with a space: versions 3 and 5 cut those off, 6 leaves them to the tokenizer as we do.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encode_peer import environment
from benchmarks.harness import Claim, Contender, main
from benchmarks.machine import MINILM
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import ModelSource

PEERS = ["3.4.1", "5.1.2", "6.2.0"]
DIFFERENCE = 1e-5
SENTENCES = [
    "A dog runs.",
    "Two children are playing with a red ball in the park near the old station.",
    "Zwei Mädchen spielen im Garten, und ein großer Hund läuft über die Straße.",
    "Un homme lit le journal à côté d'une fenêtre ouverte.",
    "¿Dónde está la biblioteca? ¡Allí, detrás del café!",
    "두 아이가 공원에서 공을 가지고 놀고 있다.",
    "Žluťoučký kůň pěl ďábelské ódy.",
    "ﬁne ligatures, ½ a cup, e\u0301 in two characters, and №5",
    "two  spaces\tand a tab",
    "Rain",
    "",
    "The same words again and again " * 120,
]


def compare(title: str, model: str, python: Path, scratch: Path) -> Claim:
    encoder = SentenceEncoder.load(model)
    ids, vectors = encoder.tokenize(SENTENCES), encoder.encode(SENTENCES, precision="fp32")
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
    (scratch / "sentences.json").write_text(json.dumps(SENTENCES), encoding="utf-8")
    minilm.save(scratch / "saved")
    models = {model: str(Path(model).resolve()) for model in options.model}
    models |= {"all-MiniLM-L6-v2": str(ModelSource.parse(MINILM)), "saved by BertRelay": str(scratch / "saved")}
    pythons = [environment(options.environments, version) for version in options.versions]
    claims = [compare(title, model, python, scratch) for title, model in models.items() for python in pythons]
    return claims, {}


if __name__ == "__main__":
    models = {"action": "append", "default": [], "metavar": "DIR", "help": "a folder written by BertRelay"}
    main(measure, __doc__, model=models, environments=Path(".peers"), versions=PEERS)
