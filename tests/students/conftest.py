"""A toy language pair or two: sentences of which every word has one translation, and French puts the place first."""

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bertrelay.device import ComputePrecision
from students.distill.settings import DistillSettings
from students.parallel.corpus import build_corpus

sys.path.append(str(Path(__file__).parent))  # unit_vectors and indexes are imported by name

SUBJECTS = ["dog/Hund/chien", "cat/Katze/chat", "bird/Vogel/oiseau", "fish/Fisch/poisson", "mouse/Maus/souris"]
VERBS = ["runs/rennt/court", "sleeps/schläft/dort", "eats/frisst/mange", "waits/wartet/attend", "sings/singt/chante"]
PLACES = ["here/hier/ici", "there/dort/là", "outside/draußen/dehors", "today/heute/aujourd'hui", "again/wieder/encore"]
COUNTS = ["one/ein/un", "no/kein/aucun"]
ORDERS = [(0, 1, 2, 3), (0, 1, 2, 3), (3, 0, 1, 2)]  # of count, subject, verb and place, by language


@dataclass(frozen=True)
class Toy:
    """Rows of English, German and French, shuffled: 200 to train on, and 50 to test with."""

    train: list[tuple[str, str, str]]
    test: list[tuple[str, str, str]]
    train_path: Path
    test_path: Path

    def source(self, part="train"):
        """An entry of `parallel` in a recipe."""
        path = self.train_path if part == "train" else self.test_path
        return {"path": str(path), "others": {"de": "de", "fr": "fr"}}

    def corpus(self, folder, dev_sentences=0):
        settings = {"teacher": "./t", "base": "./b", "parallel": [self.source()], "dev_sentences": dev_sentences}
        return build_corpus(
            folder / "toy", DistillSettings.model_validate({**settings, "seed": 1}), ComputePrecision.FP32
        )


def _sentence(words, language):
    return " ".join(words[position][language] for position in ORDERS[language])


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    drawn = [[word.split("/") for word in words] for words in product(COUNTS, SUBJECTS, VERBS, PLACES)]
    rows = [tuple(_sentence(words, language) for language in range(3)) for words in drawn]
    Random(0).shuffle(rows)
    parts = {"train": rows[:200], "test": rows[200:]}
    for name, part in parts.items():
        lines = ["en\tde\tfr", *("\t".join(row) for row in part)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Toy(parts["train"], parts["test"], folder / "train.tsv", folder / "test.tsv")


@pytest.fixture
def corpus_of(tmp_path):
    """`corpus_of(pairs)`: all pairs of English and one other language, to train on."""

    def make(pairs):
        (tmp_path / "pairs.tsv").write_text("".join(f"{en}\t{qaa}\n" for en, qaa in [("en", "qaa"), *pairs]))
        source = {"path": str(tmp_path / "pairs.tsv"), "others": {"qaa": "qaa"}}
        settings = {"teacher": "./t", "base": "./b", "parallel": [source], "dev_sentences": 0}
        return build_corpus(tmp_path / "corpora/pairs", DistillSettings.model_validate(settings), ComputePrecision.FP32)

    return make


@pytest.fixture(scope="session")
def byte_level():
    """`byte_level(texts)`: RoBERTa's tokenizer, with the processor that RoBERTa's own folders have."""

    def make(texts, prefix=False, vocabulary=600):
        rules = Tokenizer(models.BPE())
        rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        rules.decoder = decoders.ByteLevel()
        special = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
        special |= {"mask_token": "<mask>"}
        options = {"special_tokens": [*special.values()], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
        rules.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary, **options))
        rules.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        return PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>", **special)

    return make


@pytest.fixture(scope="session")
def margins():
    """`margins(source, target, k)`: the ratio margins of all with all in float64, after Artetxe & Schwenk (2019)."""

    def make(source, target, k):
        sides = [side.astype(np.float64) for side in (source, target)]
        source, target = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
        cosines = source @ target.T
        near = [np.sort(rows, axis=1)[:, -k:].mean(axis=1) for rows in (cosines, cosines.T)]
        return cosines / ((near[0][:, None] + near[1]) / 2)

    return make


@pytest.fixture
def kill_at():
    """`kill_at(module, "name", 4, work)`: a copy of this process does `work`, and is killed at the fourth call."""

    def kill(owner, name, call, work):
        def until_killed():
            real, calls = getattr(owner, name), count(1)

            def counted(*arguments, **options):
                if next(calls) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(owner, name, counted)
            work()

        process = multiprocessing.get_context("fork").Process(target=until_killed)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL

    return kill
