"""Entities, identifiers and relations of one pass that is killed again and again, beside one that was never stopped."""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest
from random_bert import save_random_bert

from benchmarks.machine import synthetic_sentences
from domain.biomedical.documents.formats import read_documents
from domain.biomedical.linking.dictionary import Concept, Dictionary
from domain.biomedical.linking.model import Linker
from domain.biomedical.ner import model as ner
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.relations import model as relations
from domain.biomedical.relations.data import Scheme
from domain.biomedical.relations.settings import RelationSettings

pytestmark = pytest.mark.slow

KILLS, PROCESSES, DOCUMENTS, SENTENCES = 5, 2, 16_000, 3
SECONDS_BETWEEN_CHECKS, LONGEST_SECONDS = 0.02, 1.0


@pytest.fixture(scope="module")
def words(tiny_encoder, tmp_path_factory):
    """The words of the command but for the output. The models have random weights, and find something everywhere."""
    folder = tmp_path_factory.mktemp("annotate")
    sentences = synthetic_sentences(DOCUMENTS * SENTENCES, seed=3)
    texts = [" ".join(islice(sentences, SENTENCES)) for _ in range(DOCUMENTS)]
    with (folder / "texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": str(row), "text": text}) + "\n" for row, text in enumerate(texts))
    base = save_random_bert(folder / "bert", texts[:200])
    source = {"base": str(base), "train": [{"path": "none.jsonl"}]}
    labels = LabelSet.of_types(["Chemical", "Disease"])
    ner.save_model(ner.start_model(NerSettings.model_validate(source), labels), folder / "tagger")
    names = dict.fromkeys(" ".join(texts[:50]).split())
    concepts = [Concept((f"D{number}",), (name,)) for number, name in enumerate(islice(names, 40))]
    Linker.create(Dictionary.of(concepts, []), tiny_encoder("bert", texts[:200])).save(folder / "linker")
    scheme = Scheme(("causes", "treats"), frozenset({("Chemical", "Disease")}))
    model = relations.start_model(RelationSettings.model_validate(source), scheme, novelty=True)
    relations.save_model(replace(model, threshold=0.0), folder / "relations")
    models = ["--link", folder / "linker", "--relate", folder / "relations", "--precision", "fp32"]
    return ["ner", "tag", folder / "tagger", folder / "texts.jsonl", *models]


def start(words, output, processes):
    command = [sys.executable, "-P", "-m", "pipelines", *words, output, "--processes", processes]
    return subprocess.Popen(list(map(str, command)), start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def shards(output):
    with suppress(FileNotFoundError):
        return sum(path.name[0] == "0" for path in Path(f"{output}.partial").iterdir())
    return 0


@pytest.mark.promise(
    "Entities, identifiers and relations of two processes killed five times have the bytes of one process",
    about="resume",
)
@pytest.mark.parametrize("name", ["found.jsonl", "triples.csv"])
def test_killed_five_times_with_two_processes_the_bytes_are_the_same(words, name, tmp_path):
    assert start(words, tmp_path / f"whole-{name}", 1).wait() == 0
    chance, output, seen = random.Random(name), tmp_path / name, []
    for _ in range(KILLS):
        process, before = start(words, output, PROCESSES), shards(output)
        while shards(output) == before and process.poll() is None:
            time.sleep(SECONDS_BETWEEN_CHECKS)
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        workers = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *workers):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        seen.append(shards(output))
        assert not output.exists()
    assert start(words, output, PROCESSES).wait() == 0
    assert output.read_bytes() == (tmp_path / f"whole-{name}").read_bytes(), f"killed after {seen} shards"
    assert seen == sorted(seen) and 0 < seen[0] < seen[-1]
    if name.endswith(".jsonl"):
        document = next(iter(read_documents(output)))
        assert document.relations and all(entity.identifier for entity in document.entities)
