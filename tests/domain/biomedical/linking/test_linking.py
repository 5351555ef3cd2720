"""A linker's ranking, its folder, its evaluation and its use while documents are tagged."""

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic_questions import start_tagger

from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.biomedical import EntityLinker, tag_file
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.formats import write_documents
from domain.biomedical.linking.data import mentions_of
from domain.biomedical.linking.dictionary import Concept, Dictionary
from domain.biomedical.linking.evaluate import is_right, judge
from domain.biomedical.linking.evaluate import run as evaluate
from domain.biomedical.linking.model import Candidate, Linker, nearest_rows
from domain.biomedical.linking.pairs import draw_pairs, with_negatives
from domain.biomedical.linking.pairs import run as write_pairs
from domain.biomedical.linking.predict import Link
from domain.biomedical.linking.settings import LinkerSettings, LinkEvaluateSettings, SynonymPairsSettings
from domain.biomedical.linking.train import run as create
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import save_model

TERMS = "D1|C9||ataxia telangiectasia|A-T\nD2||renal failure|kidney failure\nD3||hepatic failure\nD4||gout|A-T\n"
TEXT = "Patients with ataxia-telangiectasia (A-T) and gout had renal or hepatic failure; A-T is rare, xyzzy too."
GOLD = {"ataxia-telangiectasia": "MESH:D1", "gout": "D4", "renal or hepatic failure": "D2|D3", "xyzzy": "-1"}


def document(identifiers=GOLD):
    starts = {text: TEXT.index(text) for text in identifiers}
    entities = [Entity(at, at + len(text), "Disease", None, identifiers[text]) for text, at in starts.items()]
    last = TEXT.rindex("A-T")
    return Document("7", TEXT, (*entities, Entity(last, last + 3, "Disease", None, "D1")))


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return tiny_encoder("bert", [TEXT, TERMS])


@pytest.fixture(scope="module")
def linker(encoder):
    concepts = [
        Concept(tuple(ids.split("|")), tuple(names.split("|")))
        for ids, names in (line.split("||") for line in TERMS.splitlines())
    ]
    dictionary = Dictionary.of(concepts, ["MESH:"])
    return Linker.create(dictionary, encoder, ignored_prefixes=["MESH:"], precision="fp32")


@pytest.fixture
def files(tmp_path, encoder):
    (tmp_path / "terms.txt").write_text(TERMS)
    write_documents(tmp_path / "gold.pubtator", [document()])
    encoder.save(tmp_path / "encoder")
    return tmp_path


def ranked(linker, name, **options):
    (candidates,) = linker.rank(linker.nearest([name], precision="fp32"), **options)
    return candidates


def test_an_equal_name_is_first_and_a_preferred_one_before_another_concepts_synonym(linker):
    assert [(one.concept, one.score) for one in ranked(linker, "gout")[:1]] == [(3, 1.0)]
    assert {one.concept for one in ranked(linker, "a t")[:2]} == {0, 3}  # both have it, as a synonym
    dictionary = replace(linker.dictionary, is_preferred=np.array([name == "a t" for name in linker.dictionary.names]))
    assert dictionary.is_preferred.sum() == 2
    only_last = replace(dictionary, is_preferred=np.arange(len(dictionary.names)) == len(dictionary.names) - 1)
    assert ranked(replace(linker, dictionary=only_last), "a t")[0].concept == 3


def test_the_same_words_in_another_order_come_behind_an_equal_name_alone(linker):
    assert ranked(linker, "failure kidney")[0] == (1, 0.999)


def test_a_score_is_a_mixture_of_letters_and_cosine(linker):
    (row,) = [at for at, name in enumerate(linker.dictionary.names) if name == "gout"]
    cosine = float(
        linker.encoder.encode(["gouty"], normalize_embeddings=True, precision="fp32")[0] @ linker.vectors[row]
    )
    # " go", "gou", "out" of four and five sequences are in both
    assert dict(ranked(linker, "gouty", letters=0.25))[3] == pytest.approx(
        0.25 * 6 / 9 + 0.75 * max(cosine, 0), abs=1e-5
    )


def test_nearest_rows_are_those_of_all_cosines(monkeypatch):
    monkeypatch.setattr("domain.biomedical.linking.model.NAMES_AT_ONCE", 7)
    monkeypatch.setattr("domain.biomedical.linking.model.QUERIES_AT_ONCE", 3)
    chance = np.random.default_rng(0)
    queries, vectors = (chance.normal(size=(rows, 5)).astype(np.float32) for rows in (8, 30))
    rows, cosines = nearest_rows(queries, vectors, 9)
    products = queries @ vectors.T
    assert (rows == np.argsort(-products, axis=1)[:, :9]).all()
    np.testing.assert_allclose(cosines, np.take_along_axis(products, rows, 1), rtol=1e-5)


def test_entities_get_identifiers_of_their_long_form_and_of_all_their_parts(linker):
    (linked,) = EntityLinker(linker).link_documents([document(dict.fromkeys(GOLD))], precision="fp32")
    identifiers = {entity.text: entity.identifier for entity in linked.entities}
    assert identifiers | {"xyzzy": ""} == {
        "ataxia-telangiectasia": "D1", "gout": "D4", "renal or hepatic failure": "D2|D3", "xyzzy": "", "A-T": "D1"
    }  # fmt: skip
    assert all(0 <= entity.identifier_score <= 1 for entity in linked.entities)


def test_a_mention_below_the_threshold_and_one_of_another_type_have_no_new_identifier(linker):
    strict = EntityLinker(replace(linker, threshold=0.9995))
    (linked,) = strict.link_documents([document(dict.fromkeys(GOLD))], precision="fp32")
    assert {entity.text for entity in linked.entities if entity.identifier is None} == {"xyzzy"}
    (other,) = strict.link_documents([document()], types=["Gene"], precision="fp32")
    assert other == document()


@pytest.mark.parametrize(
    ("parts", "gold", "right", "right_of_two"),
    [
        ([["a", "b"]], {"a"}, True, True),
        ([["b", "a"]], {"a"}, False, True),
        ([["a"], ["b"]], {"a", "b"}, True, True),
        ([["a"], ["c"]], {"a", "b"}, False, False),
        ([["a"], ["c", "b"]], {"a", "b"}, False, True),
        ([["a"], ["b"]], {"a"}, False, False),  # a part too many
        ([[]], {"a"}, False, False),
    ],
)
def test_a_composite_mention_is_right_as_a_whole_alone(parts, gold, right, right_of_two):
    link = Link([[Candidate(ord(one), 1.0) for one in part] for part in parts], 1.0)
    assert is_right(link, frozenset(gold), lambda concept: frozenset(chr(concept)), 1) is right
    assert is_right(link, frozenset(gold), lambda concept: frozenset(chr(concept)), 2) is right_of_two


def test_metrics_are_those_counted_by_hand(linker):
    judged, _ = judge(linker, list(mentions_of(document(), ignored_prefixes=["MESH:"])), precision="fp32")
    metrics = judged.metrics(0.9, np.ones(5))
    assert judged.has_concept.tolist() == [True, True, True, False, True] and judged.right.sum() == 4
    # four mentions with a concept are right, and xyzzy, below 0.9, has no link
    assert metrics == {"accuracy_at_1": 1.0, "accuracy_at_5": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    all_linked = judged.metrics(0.0, np.ones(5))
    assert all_linked["precision"] == 4 / 5 and all_linked["recall"] == 1 and all_linked["f1"] == pytest.approx(8 / 9)
    twice = judged.metrics(0.0, np.array([1, 1, 1, 2, 1]))
    assert twice["precision"] == 4 / 6


def test_a_linker_is_made_saved_evaluated_and_opened(files, context, tmp_path):
    dictionary = [{"path": str(files / "terms.txt")}]
    gold = [{"path": str(files / "gold.pubtator")}]
    settings = {"dictionary": dictionary, "encoder": str(files / "encoder"), "precision": "fp32"}
    metrics = create(LinkerSettings(**settings, dev=gold), context)
    assert (metrics["names"], metrics["concepts"], metrics["dev/accuracy_at_1"]) == (7, 4, 1.0)
    assert metrics["dev/precision"] == 1.0  # the threshold leaves xyzzy without a link
    linker = Linker.load(context.output / "model")
    assert (linker.letters, linker.threshold) == (metrics["letters"], metrics["threshold"])
    scored = evaluate(
        LinkEvaluateSettings(model=str(context.output / "model"), test=gold, precision="fp32"),
        StageContext(tmp_path, context.cache),
    )
    assert (scored["accuracy_at_1"], scored["mentions"], scored["composite_mentions"]) == (1.0, 5, 1)
    assert scored["mentions_without_concept"] == 1 and scored["mentions_beyond_dictionary"] == 0


def test_dev_data_that_cannot_measure_and_a_threshold_that_no_link_reaches_are_refused(files, context):
    settings = {"dictionary": [{"path": str(files / "terms.txt")}], "encoder": str(files / "encoder")}
    settings |= {"dev": [{"path": str(files / "gold.pubtator")}], "precision": "fp32"}
    with pytest.raises(RequestError, match="dev: expected entities with identifiers, found none"):
        create(LinkerSettings(**settings, types=["Chemical"]), context)
    at = TEXT.index("xyzzy")
    unlike = Document("7", TEXT, (Entity(at, at + 5, "Disease", None, "D4"),))
    write_documents(files / "gold.pubtator", [unlike], overwrite=True)
    with pytest.raises(
        RequestError, match=r"threshold: expected one that a link of dev reaches, found 1, and .* is 0\."
    ):
        create(LinkerSettings(**settings, threshold=1.0), context)


def test_mentions_of_training_become_names(files, context):
    (files / "few.txt").write_text("D1||ataxia\n")
    gold = [{"path": str(files / "gold.pubtator")}]
    few = [{"path": str(files / "few.txt")}]
    settings = LinkerSettings(dictionary=few, encoder=str(files / "encoder"), mentions=gold, precision="fp32")
    create(settings, context)
    names = Linker.load(context.output / "model").dictionary.names
    assert names == ["ataxia", "ataxia telangiectasia", "gout"]  # neither a composite one nor one without a concept


def test_a_folder_without_a_linker_is_an_error(tmp_path):
    with pytest.raises(RequestError, match=r"expected a linker's folder, found no linker\.json"):
        Linker.load(tmp_path)


def test_tagged_documents_have_identifiers_and_else_the_same_entities(files, linker, tiny_bert, tmp_path):
    linker.save(files / "linker")
    tagger = start_tagger(tiny_bert, LabelSet.of_types(["Disease"]), max_tokens=32, overlap=8)
    save_model(tagger, files / "tagger")
    (files / "texts.txt").write_text("\n".join(f"{TEXT} {number}" for number in range(3)))
    tag_file(files / "tagger", files / "texts.txt", tmp_path / "a.jsonl", source_format="lines", link=files / "linker")
    entities = [one for line in (tmp_path / "a.jsonl").open() for one in json.loads(line)["entities"]]
    assert entities and all("identifier_score" in one and "identifier" in one for one in entities)
    tag_file(files / "tagger", files / "texts.txt", tmp_path / "b.jsonl", source_format="lines")
    plain = [one for line in (tmp_path / "b.jsonl").open() for one in json.loads(line)["entities"]]
    without = [{key: one[key] for key in one if not key.startswith("identifier")} for one in entities]
    assert plain == without


def test_pairs_are_names_of_one_concept_and_negatives_of_another(linker, encoder):
    names, concepts = linker.dictionary.names, linker.dictionary.concepts
    pairs = draw_pairs(linker.dictionary, 50, seed=1)
    assert {frozenset({names[pair.anchor], names[pair.positive]}) for pair in pairs} == {
        frozenset({"ataxia telangiectasia", "a t"}),
        frozenset({"renal failure", "kidney failure"}),
        frozenset({"gout", "a t"}),
    }
    for pair in with_negatives(linker.dictionary, pairs, encoder, "fp32"):
        assert concepts[pair.negative] != concepts[pair.anchor]
        assert names[pair.negative] not in (names[pair.anchor], names[pair.positive])


def test_few_pairs_are_drawn_with_a_seed_and_none_twice():
    dictionary = Dictionary.of([Concept(("D1",), tuple(f"name {number}" for number in range(20)))])
    pairs = draw_pairs(dictionary, 50, seed=1)
    assert len(set(pairs)) == 50 and pairs == draw_pairs(dictionary, 50, seed=1) != draw_pairs(dictionary, 50, seed=2)
    assert all(pair.anchor < pair.positive for pair in pairs)


def test_files_of_pairs_have_no_concept_in_common(files, context):
    settings = SynonymPairsSettings(dictionary=[{"path": str(files / "terms.txt")}], dev_share=0.5, seed=3)
    metrics = write_pairs(settings, context)
    rows = {
        name: [json.loads(line) for line in (context.output / name).open()] for name in ("train.jsonl", "dev.jsonl")
    }
    assert metrics["train_pairs"] + metrics["dev_pairs"] == 3 == sum(map(len, rows.values()))
    assert all(set(row) == {"anchor", "positive"} for listed in rows.values() for row in listed)
