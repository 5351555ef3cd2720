"""A model folder read by sentence-transformers 3, 5 and 6, and by us: the same token ids and the same vectors?

Claim: in fp32 no figure of any vector differs by 1e-5 or more, for folders written here and for all-MiniLM-L6-v2 as
published; and all-MiniLM-L6-v2 scores 0.8203 ± 0.0005 on the STSb English test set, as it does there.

    bertrelay run quickstart
    python -m benchmarks.peers --model runs/quickstart/student/latest/model --data DIR

--model may be given several times. Each version lives in an environment of its own below --environments (`.peers`);
what is missing there is installed first, which takes some minutes and a network. All of them get the torch that runs
here, so that a difference is the library's. The sentences are in six languages, with accents, ligatures, odd spaces,
an empty one, and one that is longer than any model takes. None begins or ends with a space: versions 3 and 5 cut those
off, 6 leaves them to the tokenizer as we do.
"""

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.environments import environment
from benchmarks.machine import MINILM, add_data, machine, require
from bertrelay.data.records import Rejects
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import StageContext
from teachers.evaluation.sts import read_sts, sts_metrics
from teachers.settings import StsTable

PEERS = ["3.4.1", "5.1.2", "6.2.0"]
DIFFERENCE, SPEARMAN, TOLERANCE = 1e-5, 0.8203, 0.0005
STSB = "sts/stsb/stsb-en-test.csv.gz"
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


@dataclass(frozen=True)
class Encoded:
    """What a library makes of the sentences: token ids, and vectors (sentences, dim)."""

    name: str
    ids: list[list[int]]
    vectors: NDArray[np.float32]


def encoded_here(model: str) -> Encoded:
    encoder = SentenceEncoder.load(model)
    return Encoded("BertRelay", encoder.tokenize(SENTENCES), encoder.encode(SENTENCES, precision="fp32"))


def encoded_there(python: Path, model: str, scratch: Path) -> Encoded:
    """The same by sentence-transformers, in a process of its environment; it may not use the network."""
    script = Path(__file__).with_name("peer_encode.py")
    asked, vectors, ids = (scratch / name for name in ("sentences.json", "vectors.npy", "ids.json"))
    asked.write_text(json.dumps(SENTENCES), encoding="utf-8")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    subprocess.run([python, script, model, asked, vectors, ids], check=True, env=offline)
    told = json.loads(ids.read_text())
    return Encoded(told["versions"], told["ids"], np.load(vectors))


def compare(title: str, ours: Encoded, theirs: Encoded) -> bool:
    """Prints one line, and tells whether the two agree."""
    others = sum(mine != other for mine, other in zip(ours.ids, theirs.ids, strict=True))
    tokens = "token ids equal" if others == 0 else f"token ids differ in {others} of {len(SENTENCES)} sentences"
    if ours.vectors.shape != theirs.vectors.shape:
        print(f"{title}  {theirs.name}: vectors {theirs.vectors.shape}, ours {ours.vectors.shape}")
        return False
    by_sentence = np.abs(ours.vectors - theirs.vectors).max(axis=1)  # (sentences,)
    worst = int(by_sentence.argmax())
    print(
        f"{title}  {theirs.name}: {tokens}; largest difference {by_sentence[worst]:.1e} (sentence {worst + 1})",
        flush=True,
    )
    return others == 0 and bool(by_sentence[worst] < DIFFERENCE)


def compare_all(models: dict[str, str], environments: Path, versions: Sequence[str], scratch: Path) -> bool:
    """Every model with every version; each prints its line, also after one that disagrees."""
    pythons = [environment(environments, version) for version in versions]
    agree = True
    for title, model in models.items():
        ours = encoded_here(model)
        for python in pythons:
            agree &= compare(title, ours, encoded_there(python, model, scratch))
    return agree


def stsb_spearman(encoder: SentenceEncoder, data: Path, scratch: Path) -> float:
    with Rejects(None) as rejects:
        table = StsTable(path=InputFile(data / STSB), columns=[0, 1, 2], header=False)
        pairs = {"stsb": read_sts(table, StageContext(scratch, scratch), rejects)}
    metrics = sts_metrics(pairs, lambda sentences: encoder.encode(sentences, precision="fp32"), intervals=False)
    return cast(float, metrics["sts/stsb/spearman_cosine"])


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--model", action="append", default=[], metavar="DIR", help="a folder written by BertRelay")
    parser.add_argument("--environments", type=Path, default=Path(".peers"), metavar="DIR")
    parser.add_argument("--versions", nargs="+", default=PEERS, choices=PEERS)
    options = parser.parse_args()
    require(parser, options.data, STSB)
    minilm = SentenceEncoder.load(MINILM)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        minilm.save(scratch / "saved")
        published = str(ModelSource.parse(MINILM))
        models = {model: str(Path(model).resolve()) for model in options.model}
        models |= {"all-MiniLM-L6-v2": published, "all-MiniLM-L6-v2 saved by BertRelay": str(scratch / "saved")}
        agree = compare_all(models, options.environments, options.versions, scratch)
        spearman = stsb_spearman(minilm, options.data, scratch)
    print(f"all-MiniLM-L6-v2, Spearman on the STSb English test set: {spearman:.4f}, expected {SPEARMAN} ± {TOLERANCE}")
    holds = agree and abs(spearman - SPEARMAN) <= TOLERANCE
    print(f"every difference below {DIFFERENCE:g}, equal ids, and the score as expected: {'yes' if holds else 'no'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
