"""Columns that are taken for one another are found before a training, in every task that has such columns."""

import json

import pytest

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, Table
from bertrelay.data.swapped import check_labels
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.biomedical.ner.examples import read_examples as read_entities
from domain.biomedical.ner.settings import EntitySource, NerSettings
from domain.biomedical.ner.train import _types
from domain.biomedical.qa.question_files import read_all
from domain.biomedical.qa.settings import QuestionSource
from teachers.data import read_examples


@pytest.mark.parametrize(
    ("columns", "error_text"),
    [
        ([2, 1, 0], r"a\.tsv: 50 of 50 \(100\.0%\) labels differ from all others.*max_swapped, now 0\.2"),
        ([3, 1, 2], r"a\.tsv: 50 of 50 \(100\.0%\) have a sentence without a letter"),
    ],
)
def test_labels_and_scores_in_the_place_of_sentences_are_refused(tmp_path, columns, error_text):
    rows = (f"A dog {n} runs.\tA man {n} sleeps.\t{('no', 'yes')[n % 2]}\t{n % 5}\n" for n in range(50))
    (tmp_path / "a.tsv").write_text("".join(rows))
    context = StageContext(tmp_path, Cache(tmp_path))

    def read(columns, limit):
        table = Table(path=str(tmp_path / "a.tsv"), columns=columns, header=False)
        return read_examples([table], "softmax", context, Rejects(None), max_swapped=limit)

    with pytest.raises(RequestError, match=error_text):
        read(columns, 0.2)
    assert len(read(columns, 1.0).labels) == len(read([0, 1, 2], 0.2).labels) == 50


@pytest.mark.parametrize("is_swapped", [True, False])
def test_questions_in_the_place_of_contexts_are_refused(tmp_path, is_swapped):
    texts = "What is given against gout?", "Aspirin is given against gout in many hospitals of the country."
    question, context = reversed(texts) if is_swapped else texts
    lines = (json.dumps({"question": question, "context": context, "answers": []}) for _ in range(30))
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    source = [QuestionSource(path=str(tmp_path / "q.jsonl"))]
    assert len(read_all(source, Rejects(None), max_swapped=1.0)) == 30
    if is_swapped:
        with pytest.raises(RequestError, match=r"q\.jsonl: 30 of 30 \(100\.0%\) questions are longer"):
            read_all(source, Rejects(None), max_swapped=0.2)
    else:
        assert len(read_all(source, Rejects(None), max_swapped=0.0)) == 30


def test_mentions_in_the_place_of_types_are_refused(tmp_path):
    def types(kind, limit):
        document = {"text": "Aspirin and gout.", "entities": [{"start": 0, "end": 7}]}
        lines = [document | {"id": str(n), "entities": [{"start": 0, "end": 7, "type": kind(n)}]} for n in range(30)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        source = {"path": str(tmp_path / "a.jsonl")}
        given = {"base": "./b", "train": [source], "max_swapped": limit}
        examples = list(read_entities([EntitySource.model_validate(source)], Rejects(None)))
        return _types(examples, [], NerSettings.model_validate(given))

    with pytest.raises(RequestError, match=r"types of entities: 30 of 30 \(100\.0%\) labels differ"):
        types("Aspirin{}".format, 0.2)
    assert len(types("Aspirin{}".format, 1.0)) == 30 and types(lambda _: "Chemical", 0.0) == ["Chemical"]


def test_few_labels_of_few_records_are_labels():
    check_labels("a", 19, 19, 0.0)
    check_labels("a", 40, 200, 0.2)
    with pytest.raises(RequestError):
        check_labels("a", 41, 200, 0.2)
