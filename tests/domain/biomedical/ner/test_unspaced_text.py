"""Chinese, Japanese and Thai from an annotated file through training to tagged files: offsets are right throughout."""

import json
from itertools import product

import pytest
from random_bert import save_random_bert

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from domain.biomedical import read_documents, tag_file, write_documents
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.ner.data import of_document
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.ner.train import run

LANGUAGES = {
    "Chinese": (
        ["𠮷患者口服{chemical}后{disease}好转。查体无发热！", "{disease}患者未用{chemical}；COX-2升高。随访2年。"],
        ["阿司匹林", "二甲双胍", "青霉素"],
        ["高血压", "糖尿病", "胃出血"],
    ),
    "Japanese": (
        [
            "患者は{chemical}を服用し、{disease}が改善した。発熱はない。",
            "{disease}に{chemical}は投与していない。経過は良好。",
        ],
        ["アスピリン", "メトホルミン", "ﾍﾟﾆｼﾘﾝ"],
        ["高血圧症", "糖尿病", "か\u3099ん"],
    ),
    "Thai": (
        ["ผู้ป่วยได้รับ{chemical}และ{disease}ดีขึ้น ไม่มีไข้", "ผู้ที่มี{disease}ไม่ได้ใช้{chemical}"],
        ["แอสไพริน", "เมตฟอร์มิน", "เพนิซิลลิน"],
        ["เบาหวาน", "น้ำท่วมปอด", "โรคเกาต์"],
    ),
}
LEARNING = {"epochs": 30, "batch_tokens": 256, "learning_rate": 1e-2, "precision": "fp32", "seed": 3, "decoder": "crf"}


def document(name, template, **mentions):
    """A document with a title in front of `template`, whose fields become entities of these types."""
    title, text, entities = "Case 😀 1", template.format(**mentions), []
    for kind, mention in mentions.items():
        start = len(title) + 1 + text.index(mention)
        entities.append(Entity(start, start + len(mention), kind))
    return Document(name, f"{title} {text}", tuple(sorted(entities, key=lambda entity: entity.start)))


def documents(language):
    templates, chemicals, diseases = LANGUAGES[language]
    return [
        document(f"{language}-{number}", template, chemical=chemical, disease=disease)
        for number, (template, chemical, disease) in enumerate(product(templates, chemicals, diseases))
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_entity_is_whole_characters_and_a_sentence_ends_at_its_mark(language):
    for document in documents(language):
        examples = list(of_document(document))
        assert not any(example.untaggable for example in examples)
        mentions = ["".join(example.tokens[s:e]) for example in examples for s, e, _ in example.entities]
        assert mentions == [entity.text for entity in document.entities]
        assert "".join(token for example in examples for token in example.tokens) == "".join(document.text.split())
        assert len(examples) == (1 if language == "Thai" else 2)


def spans(path):
    return {
        document.id: [(e.start, e.end, e.type, e.text) for e in document.entities] for document in read_documents(path)
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_entities_are_learned_from_pubtator_and_tagged_at_their_offsets(language, tmp_path):
    gold = documents(language)
    write_documents(tmp_path / "train.pubtator", gold[1:])
    write_documents(tmp_path / "test.pubtator", [Document(gold[0].id, gold[0].text)])
    base = save_random_bert(tmp_path / "base", [document.text for document in gold] * 3, vocabulary=300, max_tokens=100)
    settings = {**LEARNING, "base": str(base), "train": [{"path": str(tmp_path / "train.pubtator")}]}
    run(NerSettings.model_validate(settings), StageContext(tmp_path, Cache(tmp_path)))
    for output in ("found.pubtator", "found.jsonl"):
        tag_file(tmp_path / "model", tmp_path / "test.pubtator", tmp_path / output, precision="fp32")
        assert spans(tmp_path / output) == {
            gold[0].id: [(e.start, e.end, e.type, gold[0].text[e.start : e.end]) for e in gold[0].entities]
        }
    (row,) = map(json.loads, (tmp_path / "found.jsonl").open())
    assert row["text"] == gold[0].text
