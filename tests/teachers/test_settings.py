import pytest
from pydantic import ValidationError

from teachers.evaluation.settings import ProtocolSettings
from teachers.settings import TrainSettings

TABLE = {"path": "train.tsv"}


def settings(**given):
    return TrainSettings.model_validate({"base": "./base", "objective": "softmax", "train": [TABLE], **given})


def test_what_may_be_given_is_taken():
    assert settings(batch_tokens=512).batch_items is None, "a token budget replaces the sixteen pairs"
    assert settings(patience=3, dev=[TABLE]).patience == settings(patience=3, dev_sts={"x": TABLE}).patience == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"concatenation": ["v", "u"]}, r"u, v, \|u-v\|, u\*v; found v, u"),
        ({"objective": "cosine", "score_range": [5, 0]}, "lowest score first"),
        (
            {"objective": "cosine", "head": "@nli/head"},
            "head: without effect, because objective is cosine and not",
        ),
        (
            {"objective": "softmax", "margin": 2.0},
            "margin: without effect, because objective is softmax and",
        ),
        (
            {"objective": "triplet", "dimensions": [8]},
            "dimensions: without effect, because objective is triplet",
        ),
        ({"objective": "angle", "dimensions": [8, 3]}, r"two halves; expected even numbers, found \[3\]"),
        ({"evaluate_every": 10, "patience": 3}, "evaluate_every, patience: without effect"),
    ],
)
def test_a_setting_without_effect_or_sense_is_refused(given, expected):
    with pytest.raises(ValidationError, match=expected):
        settings(**given)


def local(kind, *languages):
    return {"task": "Mine", "type": kind, "languages": list(languages), "path": "mine.tsv"}


STS17 = {"tasks": ["STS17"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model": None}, "exactly one of model, glove, bilstm and tfidf"),
        ({"model": None, "tfidf": True, "glove": "a.txt"}, "exactly one of model, glove, bilstm and tfidf"),
        ({**STS17, "model": None, "tfidf": True}, "model: expected an encoder for the protocol mteb"),
        ({"model": None, "tfidf": True, "pooling": ["cls"]}, "pooling: without effect, because model is absent"),
        ({}, "tasks: expected the name of a task of mteb, or tasks of your own"),
        ({**STS17, "protocols": ["sts"], "data": "."}, "tasks: without effect, because protocols is sts and not mteb"),
        ({**STS17, "protocols": ["sts", "mteb"]}, "data: expected the folder of the official files of sts"),
        ({**STS17, "sets": ["STSb"]}, "sets: without effect, because protocols is mteb"),
        ({**STS17, "languages": ["english"]}, "expected a language code such as de"),
        ({"local": [local("sts", "en", "de")] * 2}, "each task once in each pair of languages, found twice Mine in en"),
        ({"local": [local("sts", "en"), local("bitext", "en", "de")]}, "one type for all subsets of a task, found two"),
        ({"local": [local("bitext", "de")]}, "expected two for translations, found de"),
    ],
)
def test_protocols_that_do_not_fit_together_are_refused(given, expected):
    with pytest.raises(ValidationError, match=expected):
        ProtocolSettings.model_validate({"protocols": ["mteb"], "model": "owner/name", **given})
