import pytest
from pydantic import ValidationError

from teachers.sbert_paper.settings import ProtocolSettings


def local(kind, *languages):
    return {"task": "Mine", "type": kind, "languages": list(languages), "path": "mine.tsv"}


STS17 = {"tasks": ["STS17"]}


@pytest.mark.parametrize(
    ("fields", "expected"),
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
def test_protocols_that_do_not_fit_together_are_refused(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        ProtocolSettings.model_validate({"protocols": ["mteb"], "model": "owner/name", **fields})
