"""Sentences of annotated files: every gold entity is a span of words, or is counted as beyond tags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.biomedical.documents.document import Document, Entity, sentences_of
from domain.biomedical.documents.tags import TokenSpan
from domain.biomedical.ner.data import Example, of_document, of_types, read_examples, types_in, without_held_out
from domain.biomedical.ner.settings import EntitySource, NerSettings
from domain.biomedical.ner.train import _types
from domain.text.words import word_spans

TEXT = "No sign of gout. Acute gouty arthritis was seen."


def source(path, **more):
    return EntitySource.model_validate({"path": str(path), **more})


@pytest.fixture
def read(tmp_path):
    """The examples of a file of this name and content."""

    def write_and_read(name, content, rejects=None, only_legal=True, **more):
        (tmp_path / name).write_text(content)
        return read_examples([source(tmp_path / name, **more)], rejects, only_legal)

    return write_and_read


def entity(mention, kind="Disease"):
    start = TEXT.index(mention)
    return Entity(start, start + len(mention), kind)


def test_entities_of_a_document_become_spans_of_its_words():
    document = Document("7", TEXT, (entity("gouty arthritis"), replace(entity("gout."), end=TEXT.index("."))))
    first, second = of_document(document)
    assert first == Example(("No", "sign", "of", "gout", "."), (TokenSpan(3, 4, "Disease"),), "7")
    assert second.entities == ((1, 3, "Disease"),)
    (joined,) = of_document(Document("7", TEXT, (entity("gout. Acute"),)))  # one entity over two sentences
    assert (len(joined.tokens), joined.entities) == (11, ((3, 6, "Disease"),))


def test_entities_that_tags_cannot_represent_are_counted():
    nested, whole = entity("arthritis"), entity("gouty arthritis")
    inside_a_word = entity("gou", "Chemical")
    broken = replace(entity("Acute gouty"), fragments=((17, 22), (26, 28)))
    examples = list(of_document(Document("7", TEXT, (nested, whole, inside_a_word, broken))))
    assert [example.untaggable for example in examples] == [("Chemical",), ("Disease", "Disease")]
    assert examples[1].entities == ((1, 3, "Disease"),)
    assert types_in(examples) == ["Chemical", "Disease"]
    behind_the_last_word = Document("1", "gout \n ", (Entity(0, 4, "A"), Entity(5, 6, "B")))
    (example,) = of_document(behind_the_last_word)
    assert (example.entities, example.untaggable) == (((0, 1, "A"),), ("B",))
    (example,) = of_document(Document("2", " \n ", (Entity(1, 2, "B"),)))
    assert (example.tokens, example.untaggable) == ((), ("B",))
    assert list(of_document(Document("3", " \n "))) == []
    behind_given_tokens = Document("4", "gout. flu", (Entity(6, 9, "B"),), sentences=(((0, 4), (4, 5)), ()))
    assert [example.untaggable for example in of_document(behind_given_tokens)] == [(), ("B",)]


def test_white_space_at_the_ends_is_trimmed_and_an_entity_given_twice_counts_once(read, capsys):
    entities = [{"start": 0, "end": end, "type": "D"} for end in (5, 4, 4)]
    line = json.dumps({"text": "gout \u00a0is seen", "entities": entities})
    (example,) = read("a.jsonl", line + "\n")
    assert (example.entities, example.untaggable) == (((0, 1, "D"),), ())
    shown = capsys.readouterr().err
    assert "2 × given twice, which counts once; 1 × white space at the ends, which is trimmed" in shown


def test_a_misplaced_entity_rejects_its_document_or_with_drop_misplaced_only_itself(read, tmp_path, capsys):
    entities = [{"start": 0, "end": 4, "type": "D", "text": "gout"}, {"start": 1, "end": 4, "type": "D", "text": "flu"}]
    line = json.dumps({"text": "gout is seen", "entities": entities})
    with pytest.raises(RequestError, match="found none that can be used"):
        read("a.jsonl", line + "\n", Rejects(None, limit=1))
    (example,) = read_examples([source(tmp_path / "a.jsonl")], Rejects(None), drop_misplaced=True)
    assert example.entities == ((0, 1, "D"),)
    shown = capsys.readouterr().err
    assert "left out: 1 × an entity whose text is not at its offsets" in shown


def test_sentences_of_a_document_have_its_name_and_those_of_others_do_not(read, tmp_path):
    def documents(examples):
        names = [example.document for example in examples]
        return [names.index(name) for name in names]

    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        file.write_text('{"id": "1", "text": "No flu. No gout."}\n')
    assert documents(read_examples([source(file) for file in files])) == [0, 0, 2, 2]
    assert documents(read("a.tsv", "-DOCSTART-\tO\n\na\tO\n\nb\tO\n\n-DOCSTART-\tO\n\nc\tO\n")) == [0, 0, 2]
    assert documents(read("a.tsv", "a\tO\n\nb\tO\n")) == [0, 1]
    assert documents(read("a.tsv", "###MEDLINE:1\n\na\tO\n\nb\tO\n\n###MEDLINE:2\n\nc\tO\n")) == [0, 0, 2]
    with_comments = read("a.tsv", "# id 1\n#\tO\n\n# id 2\nb\tO\nc\tO\n")
    assert [example.tokens for example in with_comments] == [("#",), ("b", "c")]


def test_rejected_and_used_records_are_counted_in_one_unit(read):
    documents, sentences = (Rejects(None, limit=1.0) for _ in range(2))
    lines = '{"text": "One. Two. Three. Four."}\n{"id": 1}\n{"text": "Five. Six."}\n'
    assert len(read("a.jsonl", lines, documents)) == 6
    assert (documents.counts.total(), documents.records) == (1, 3)
    assert len(read("b.tsv", "-DOCSTART-\tO\n\nflu\tI-D\n\ngout\tB-D\n\nno\tO\n", sentences)) == 2
    assert (sentences.counts.total(), sentences.records) == (1, 3)


def test_other_schemes_and_columns_are_read(read):
    assert read("a.tsv", "acute\tB-D\ngout\tE-D\nflu\tS-D\n")[0].entities == ((0, 2, "D"), (2, 3, "D"))
    (example,) = read("a.tsv", "NN\tgout\tB-D\tx\nNN\tseen\tO\tx\n", columns=[1, 2])
    assert (example.tokens, example.entities) == (("gout", "seen"), ((0, 1, "D"),))
    with pytest.raises(RequestError, match=r"a\.jsonl: columns: only conll and conll-iobes have them"):
        read("a.jsonl", '{"text": "flu"}\n', columns=[1, 2])
    with pytest.raises(ValidationError, match="columns: without effect, because pubtator has none"):
        source(Path("a"), columns=[1, 2], format="pubtator")


def test_illegal_tags_are_rejected_in_training_and_in_scoring_kept_where_they_are_iob2(read):
    rejects, illegal = Rejects(None, limit=1.0), "flu\tI-D\n\ngout\tB-D\n"
    assert [example.entities for example in read("a.tsv", illegal, rejects)] == [((0, 1, "D"),)]
    assert rejects.counts["an illegal tag sequence"] == 1
    scored = read("a.tsv", illegal, only_legal=False)
    assert [(example.entities, example.unopened) for example in scored] == [((), ((0, 1, "D"),)), (((0, 1, "D"),), ())]
    assert types_in(scored[:1]) == ["D"] and scored[0].entity_tokens == ["flu"]
    with pytest.raises(RequestError, match=r"a\.tsv, line 2: an illegal tag sequence \(in IOBES, 1 of 2"):
        read("a.tsv", "flu\tO\nflu\tI-D\n\ngout\tS-D\n\nflu\tS-D\n", only_legal=False)


def test_other_types_become_no_entity():
    x, y, unopened = TokenSpan(0, 2, "X"), TokenSpan(2, 3, "Y"), TokenSpan(3, 4, "X")
    example = Example(("a", "b", "c", "d"), (x, y), "1", ("X", "Y"), (unopened,))
    assert of_types([example], ["Y"]) == [Example(("a", "b", "c", "d"), (y,), "1", ("Y",))]
    assert of_types([example], []) == [example]


def test_a_corpus_has_its_own_types_under_names_of_the_model(read, capsys):
    types = {"DiseaseOrPhenotypicFeature": "Disease"}
    entities = "1\t0\t11\tBRCA cancer\tGene\n1\t5\t11\tcancer\tDiseaseOrPhenotypicFeature\n"
    (title, _) = read("a.pubtator", f"1|t|BRCA cancer.\n1|a|Fine.\n{entities}", types=types, corpus="biored")
    assert (title.entities, title.untaggable) == (((1, 2, "Disease"),), ())  # the gene around it is not read
    assert (title.corpus, title.annotated) == ("biored", {"Disease"})
    assert title.scored([TokenSpan(0, 1, "Gene"), TokenSpan(1, 2, "Disease")]) == [(1, 2, "Disease")]
    assert "entities of types that `types` leaves out: 1 × Gene" in capsys.readouterr().err
    (sentence,) = read("a.tsv", "flu\tB-D\nis\tO\nbad\tB-X\n", types={"D": "Disease"})
    assert (sentence.entities, sentence.annotated) == (((0, 1, "Disease"),), {"Disease"})
    (sentence,) = read("a.tsv", "flu\tB-D\n")
    assert sentence.annotated is None and sentence.annotates("anything")
    with pytest.raises(RequestError, match=r"a\.tsv: types: expected entities of the types Disease, found 1 × D"):
        read("a.tsv", "flu\tB-D\n", types={"Disease": "Disease"})


def test_sentences_that_are_held_out_and_documents_with_most_of_theirs_are_not_trained_on(capsys):
    def document(name, *sentences):
        return [Example(tuple(sentence.split()), (), name) for sentence in sentences]

    train = [*document("1", "a b", "c", "d"), *document("2", "c", "e", "f"), *document("3", "g")]
    kept = without_held_out(train, document("9", "ab", "c", "x"))  # words are split in another way there
    assert [(example.document, example.tokens) for example in kept] == [("2", ("e",)), ("2", ("f",)), ("3", ("g",))]
    assert "held_out: 4 of 7 sentences of train are left out" in capsys.readouterr().err


def test_without_a_usable_record_the_first_fault_is_reported(read):
    with pytest.raises(WorkError, match=r"another shape .*line 1 \(text: Field required\)"):
        read("a.jsonl", '{"txt": "a"}\n', Rejects(None))
    with pytest.raises(RequestError, match="found none that can be used"):
        read("a.jsonl", '{"txt": "a"}\n', Rejects(None, limit=1))


def test_a_document_given_twice_counts_once_in_training(tmp_path, capsys):
    (tmp_path / "a.pubtator").write_text(
        "1|t|Gout is bad.\n1|a|It hurts.\n1\t0\t4\tGout\tDisease\n\n2|t|Fine.\n2|a|So.\n\n"
    )
    both = [source(tmp_path / "a.pubtator"), source(tmp_path / "a.pubtator")]
    assert len(read_examples(both, once=True)) == 4
    assert (
        "2 of 4 documents are copies of an earlier one, with their entities, and count once" in capsys.readouterr().err
    )
    assert len(read_examples(both)) == 8
    assert "and are scored each" in capsys.readouterr().err


def test_a_document_of_one_sentence_given_twice_counts_once_too(tmp_path, capsys):
    line = '{"id": "%s", "text": "Gout", "entities": [{"start": 0, "end": 4, "type": "Disease"}]}\n'
    (tmp_path / "a.jsonl").write_text(line % 1 + line % 2)
    assert len(read_examples([source(tmp_path / "a.jsonl")], once=True)) == 1
    assert "1 of 2 documents are copies" in capsys.readouterr().err


def test_equal_sentences_of_no_document_are_warned_of_where_they_are_many(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("Fig\tO\n1\tO\n\n" * 2 + "".join(f"gout{n}\tB-Disease\n\n" for n in range(300)))
    assert len(read_examples([source(tmp_path / "a.tsv")], once=True)) == 302
    assert "copies" not in capsys.readouterr().err
    assert len(read_examples([source(tmp_path / "a.tsv")] * 2, once=True)) == 604
    assert (
        "303 of 604 sentences are copies of an earlier one, with their tags, and count each" in capsys.readouterr().err
    )


def test_mentions_in_the_place_of_types_are_refused(tmp_path):
    def types(kind, limit):
        document = {"text": "Aspirin and gout.", "entities": [{"start": 0, "end": 7}]}
        lines = [document | {"id": str(n), "entities": [{"start": 0, "end": 7, "type": kind(n)}]} for n in range(30)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        source = {"path": str(tmp_path / "a.jsonl")}
        settings = {"base": "./b", "train": [source], "max_swapped": limit}
        examples = list(read_examples([EntitySource.model_validate(source)], Rejects(None)))
        return _types(examples, [], NerSettings.model_validate(settings))

    with pytest.raises(RequestError, match=r"types of entities: 30 of 30 \(100\.0%\) labels differ"):
        types("Aspirin{}".format, 0.2)
    assert len(types("Aspirin{}".format, 1.0)) == 30 and types(lambda _: "Chemical", 0.0) == ["Chemical"]


def test_sentences_have_all_words():
    text = "It was E. Coli was found. It grew. Then not."
    everything = [word for words in sentences_of(Document("", text)) for word in words]
    assert everything == word_spans(text)
