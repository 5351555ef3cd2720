"""Wikipedia sections: the official file, and accuracies by hand."""

import numpy as np
import pytest

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from teachers.sbert_paper import sections as sections_module
from teachers.sbert_paper.encoders import tfidf
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.sections import read_sections, section_metrics

POINTS = {"a": (0, 0), "b": (1, 0), "c": (0, 3), "d": (4, 4), "e": (1, 1)}


def encode(sentences):
    return np.array([POINTS[sentence] for sentence in sentences], np.float32)


def write(data, file, lines, encoding="utf-8"):
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def sections(data, *lines, header="Sentence1,Sentence2,Sentence3"):
    write(data, "wikipedia-sections/test.csv", [header, *lines])
    with Rejects(None) as rejects:
        return read_sections(OfficialFiles(data), StageContext(data, Cache(data)), rejects)


def test_accuracies_by_hand_where_an_equal_distance_is_no_hit(tmp_path):
    # from a: b at 1, e at √2, c at 3, d at √32
    triplets = sections(tmp_path, "a,b,c", "a,c,e", "a,e,d", "a,b,b")
    metrics = section_metrics(triplets, lambda _: encode)
    assert metrics["sections/accuracy"] == 2 / 4
    # by cosine: e and d have one direction, c is at a right angle; a is zero
    by_cosine = section_metrics([("e", "d", "c"), ("c", "b", "e"), ("b", "e", "c")], lambda _: encode)
    assert by_cosine["sections/accuracy_cosine"] == pytest.approx(2 / 3)


def test_sections_are_encoded_in_blocks_by_one_encoder_of_all(monkeypatch):
    triplets = [(f"dog {n}", f"the dog {n % 3}", f"the cat {n}") for n in range(11)]
    whole = section_metrics(triplets, tfidf)
    monkeypatch.setattr(sections_module, "BLOCK", 4)
    sizes = []

    def fit(sentences):
        encode = tfidf(sentences)
        return lambda block: sizes.append(len(block)) or encode(block)

    assert section_metrics(triplets, fit) == whole
    assert sizes == [12, 12, 9]


def test_sections_of_another_form_are_refused(tmp_path):
    with pytest.raises(RequestError, match="Sentence3"):
        sections(tmp_path, "a,b,c", header="Sentence1,Sentence2,Other")
    with pytest.raises(WorkError, match="too few fields"):
        sections(tmp_path, "a,b,c", "a,b")
    with pytest.raises(WorkError, match=r"1 × an empty sentence in .*test\.csv.* line 3"):
        sections(tmp_path, "a,b,c", "a,,c")
