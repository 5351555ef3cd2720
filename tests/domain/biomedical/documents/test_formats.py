import gzip
import json
import sys
import tracemalloc
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bioc import pubtator as bioc_pubtator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_documents import ALPHABET, SUFFIXES
from real_files import NER, with_ner

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.conll import Columns, SentenceRow, sentence_rows
from domain.biomedical.documents.document import Document, Entity, Passage
from domain.biomedical.documents.formats import format_of, read_documents, write_documents

FILES = sorted(NER.glob("*/test.tsv"))

SIGNS = st.sampled_from(ALPHABET) | st.characters(codec="utf-8")
PLAIN_SIGNS = SIGNS.filter(lambda sign: not set(sign) & set("\0\t\r\n") and sign != "-DOCSTART-")

tried = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def documents_of(draw, signs=SIGNS, discontinuous=True):
    """Up to three documents with nested, overlapping and discontinuous entities, often at the borders of the text."""
    documents = []
    for number in range(draw(st.integers(0, 3))):
        text = "".join(draw(st.lists(signs, max_size=20)))
        borders = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=4))})
        spans, entities = list(combinations(borders, 2)), []  # none in an empty text
        for start, end in draw(st.lists(st.sampled_from(spans), unique=True, max_size=6)) if spans else ():
            fragments = ((start, start + 1), (end - 1, end)) if discontinuous and end - start > 2 else ()
            confidence, identifier = draw(st.none() | st.floats(0, 1)), draw(st.sampled_from([None, "MESH:D1"]))
            entities.append(Entity(start, end, draw(st.sampled_from("XY")), confidence, identifier, fragments))
        documents.append(Document(f"d{number}", text, tuple(entities)))
    return documents


@st.composite
def documents_of_words(draw):
    """Up to three documents of tokens with strange characters; some of the tokens are entities."""
    documents = []
    for number in range(1, draw(st.integers(1, 4))):
        text, sentences, entities = "", [], []
        for tokens in draw(
            st.lists(st.lists(st.lists(PLAIN_SIGNS, min_size=1, max_size=3), min_size=1, max_size=5), max_size=3)
        ):
            spans = []
            for token in map("".join, tokens):
                spans.append((len(text), len(text) + len(token)))
                text += token + draw(st.sampled_from([" ", "", "\n"]))
            sentences.append(tuple(spans))
            first, last = sorted(draw(st.lists(st.integers(0, len(spans) - 1), min_size=2, max_size=2)))
            if draw(st.booleans()):
                entities.append(Entity(spans[first][0], spans[last][1], draw(st.sampled_from(["Disease", "a-b"]))))
        documents.append(Document(f"documents-{number}", text, tuple(entities), sentences=tuple(sentences)))
    return documents


def round_trip(folder, name, documents, rejects=None):
    """The documents, written into a new file of the folder and read from it."""
    path = Path(mkdtemp(dir=folder)) / f"documents{SUFFIXES[name]}"
    write_documents(path, documents, name, rejects, overwrite=True)
    assert format_of(path) == name
    return list(read_documents(path))


def bare(document):
    """The parts that every format keeps."""
    entities = [(entity.start, entity.end, entity.type) for entity in document.entities]
    return document.id, document.text, entities


@pytest.mark.parametrize("name", ["jsonl", "bioc"])
@tried
@given(documents_of())
def test_json_holds_every_document_to_the_character(name, tmp_path, documents):
    assert round_trip(tmp_path, name, documents) == documents


@tried
@given(documents_of_words())
def test_jsonl_holds_passages_and_tokens(tmp_path, documents):
    documents = [replace(document, passages=(Passage(0, len(document.text), "x"),)) for document in documents]
    assert round_trip(tmp_path, "jsonl", documents) == documents


def on_one_line(text, entity):
    """The entity as brat reads it: fragments that only a line break and white space divide are one."""
    between = text[entity.spans[0][1] : entity.spans[-1][0]]
    return replace(entity, fragments=()) if between.isspace() and set(between) & set("\r\n") else entity


@tried
@given(documents_of())
def test_brat_holds_every_text_to_the_character_and_refuses_entities_with_a_tab_or_outer_line_break(
    tmp_path, documents
):
    documents = [Document("a", "gout"), *documents]  # a folder is never empty
    with Rejects(None, limit=1) as rejects:
        copies = round_trip(tmp_path, "brat", documents, rejects)
    assert set(rejects.counts) <= {"an entity that no line can hold"}
    assert copies == [
        replace(document, entities=tuple(on_one_line(document.text, entity) for entity in document.entities))
        for document in documents
        if not any("\t" in entity.text for entity in document.entities)
        and not {
            document.text[border] for entity in document.entities for a, b in entity.spans for border in (a, b - 1)
        }
        & set("\r\n")
    ]
    for document in copies:
        assert Path(document.file).with_suffix(".txt").read_bytes() == document.text.encode()


@tried
@given(documents_of(PLAIN_SIGNS.filter(lambda sign: sign == "".join(sign.splitlines())), discontinuous=False))
def test_pubtator_holds_every_text_on_one_line_to_the_character(tmp_path, documents):
    for copy, document in zip(round_trip(tmp_path, "pubtator", documents), documents, strict=True):
        plain = tuple(replace(entity, confidence=None) for entity in document.entities)
        assert replace(copy, passages=()) == replace(document, entities=plain)


@tried
@given(documents_of(SIGNS.filter(lambda sign: not set(sign) & set("\0\t|")), discontinuous=False))
def test_pubtator_is_read_by_bioc_with_every_annotation_at_its_place(tmp_path, documents):
    """The package `bioc` has other rules for fields and lines."""
    documents = [document for document in documents if document.text.strip()]  # it skips the others
    path = tmp_path / "documents.pubtator"
    write_documents(path, documents, overwrite=True)
    with path.open(encoding="utf-8", newline="") as file:
        theirs = list(bioc_pubtator.iterparse_s(file.read().splitlines()))
    assert [document.pmid for document in theirs] == [document.id for document in documents]
    for read, document in zip(theirs, documents, strict=True):
        assert not read.relations
        expected = [(entity.start, entity.end, entity.type, entity.identifier or "-") for entity in document.entities]
        assert [
            (int(annotation.start), int(annotation.end), annotation.type, annotation.id)
            for annotation in read.annotations
        ] == expected


def test_line_breaks_become_spaces_of_equal_length_in_pubtator_and_are_counted(tmp_path, capsys):
    text = "Type two\r\ndiabetes.\nSeen\fin mice.\u2028"
    entities = (Entity(5, 18, "Disease"), Entity(28, 32, "Species"))
    passages = (Passage(0, 19, "title"), Passage(20, len(text), "abstract"))
    documents = [Document("1", text, entities, passages), Document("2", "one line")]
    first, second = round_trip(tmp_path, "pubtator", documents)
    assert first == replace(documents[0], text="Type two  diabetes. Seen in mice. ")
    assert second.text == "one line"
    assert (
        "documents.pubtator: 4 line breaks in 1 documents became spaces of the same length" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["conll", "conll-iobes"])
@tried
@given(documents_of_words())
def test_conll_holds_the_words_and_entities_of_every_document(name, tmp_path, documents):
    copies = round_trip(tmp_path, name, documents)
    for document, copy in zip(documents, copies, strict=True):
        tokens = [[copy.text[start:end] for start, end in sentence] for sentence in copy.sentences]
        assert tokens == [[document.text[start:end] for start, end in sentence] for sentence in document.sentences]
        assert offsets_of(copy) == offsets_of(document)
    assert round_trip(tmp_path, name, copies) == copies


def offsets_of(document):
    """Entities by the numbers of their first and last token."""
    tokens = [token for sentence in document.sentences for token in sentence]
    starts, ends = [start for start, _ in tokens], [end for _, end in tokens]
    return [(starts.index(entity.start), ends.index(entity.end), entity.type) for entity in document.entities]


@with_ner
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_real_documents_survive_every_format(tmp_path, path, monkeypatch):
    monkeypatch.setattr("bertrelay.files.sync_contents", lambda _: None)  # of hundreds of files
    documents = sorted(read_documents(path), key=lambda document: document.id)  # as the files of a folder are read
    write_documents(tmp_path / "copy.tsv", read_documents(path))
    assert (tmp_path / "copy.tsv").read_bytes().replace(b"-DOCSTART-\tO\n\n", b"") == path.read_bytes()
    documents = documents[::5]
    for name in ("jsonl", "bioc", "pubtator", "brat"):
        assert [bare(document) for document in round_trip(tmp_path, name, documents)] == [
            bare(document) for document in documents
        ]
    back = round_trip(tmp_path, "conll-iobes", documents)
    assert [(document.text, offsets_of(document)) for document in back] == [
        (document.text, offsets_of(document)) for document in documents
    ]


def test_title_and_abstract_stay_apart_where_no_entity_is_lost(tmp_path):
    passages = (Passage(0, 5, "title"), Passage(6, 12, "abstract"))
    document = Document("1", "Title wholly", (Entity(0, 5, "X"), Entity(6, 12, "Y")), passages)
    over = Document("2", "Title wholly", (Entity(3, 8, "X"),), passages)
    line = Document("3", "Title\nwholly", (), passages)
    assert round_trip(tmp_path, "pubtator", [document]) == [document]
    whole, *others = round_trip(tmp_path, "bioc", [document, over, line])
    assert (whole, others) == (document, [replace(over, passages=()), replace(line, passages=())])


def test_pubtator_as_ncbi_writes_it(tmp_path):
    relations = ["1\tCID\tD1\tD2", "1\tAssociation\t7157\t1956\tNovel"]
    lines = ["1|t|A title.", "1|a|Aspirin helps.", "1\t9\t16\tAspirin\tChemical\tD001241", *relations, ""]
    (tmp_path / "corpus.txt").write_bytes("\r\n".join([*lines, "2|t|", "2|a|x", ""]).encode())
    first, second = read_documents(tmp_path / "corpus.txt")
    assert (first.text, first.line) == ("A title. Aspirin helps.", 1)
    assert first.entities == (Entity(9, 16, "Chemical", identifier="D001241"),)
    assert first.text[9:16] == "Aspirin"
    assert (second.text, second.line) == (" x", 7)
    assert [relation.type for relation in first.relations] == ["CID", "Association"]


def test_brat_as_its_authors_show_it(tmp_path):
    (tmp_path / "1.txt").write_bytes(b"Lung\ncancer and breast cancer, lung\r\nmetastases")
    lines = [
        "T1\tDisease 0 4;5 11\tLung cancer",
        "T2\tDisease 16 29\tbreast cancer",
        "N1\tReference T2 MESH:D1\tbreast",
        "T3\tDisease 31 35;5 11\tlung cancer",
        "T4\tDisease 31 35;37 47\tlung metastases",
    ]
    others = ["R1\tSame Arg1:T1 Arg2:T2", "A1\tNegated T1", "#1\tAnnotatorNotes T1\tsure?", "*\tEquiv T1 T2", ""]
    (tmp_path / "1.ann").write_text("\n".join(lines + others))
    (document,) = read_documents(tmp_path)
    expected = (
        Entity(0, 11, "Disease"),  # over a line break, and so no discontinuous one
        Entity(16, 29, "Disease", identifier="MESH:D1"),
        Entity(5, 35, "Disease", fragments=((5, 11), (31, 35))),
        Entity(31, 47, "Disease"),
    )
    assert document.entities == expected
    write_documents(tmp_path / "again", [document])
    written = (tmp_path / "again" / "1.ann").read_text().splitlines()
    assert [line for line in written if line[0] == "T"] == [
        "T1\tDisease 0 4;5 11\tLung cancer",
        "T2\tDisease 16 29\tbreast cancer",
        "T3\tDisease 5 11;31 35\tcancer lung",
        "T4\tDisease 31 35;37 47\tlung metastases",
    ]


def test_a_note_without_a_probability_is_skipped(tmp_path):
    notes = {"0.98": 0.98, "1e-05": 1e-05, "9.5e-07": 9.5e-07, "95": None, "3-4": None, "1.2.3": None, "1e": None}
    for number, note in enumerate(notes):
        (tmp_path / f"{number}.txt").write_text("gout")
        (tmp_path / f"{number}.ann").write_text(f"T1\tDisease 0 4\tgout\n#1\tAnnotatorNotes T1\tconfidence {note}\n")
    assert [document.entities[0].confidence for document in read_documents(tmp_path)] == list(notes.values())


def test_bioc_as_pubtator_gives_it_line_by_line(tmp_path):
    passages = [
        {"offset": 0, "infons": {"type": "title"}, "text": "Aspirin", "annotations": []},
        {
            "offset": 9,
            "infons": {"type": "abstract"},
            "sentences": [{"offset": 9, "text": "It helps."}, {"offset": 20, "text": "Aspirin", "annotations": [
                {"id": "1", "infons": {"type": "Chemical", "identifier": None}, "text": "Aspirin",
                 "locations": [{"offset": 20, "length": 7}]}]}],
        },
    ]  # fmt: skip
    line = json.dumps({"_id": "7|None", "id": 7, "infons": {}, "passages": passages})
    other = line.replace('"id": 7', '"id": 8')
    (tmp_path / "two.json").write_text(f"{line}\n{other}\n")
    first, second = read_documents(tmp_path / "two.json")
    assert (first.id, second.id, first.line, second.line) == ("7", "8", 1, 2)
    collections = '[{"source": "PMC", "documents": [%s]},\n{"documents": [%s], "key": "k"},\n{"id": 9, "passages": []}]'
    (tmp_path / "pmc.json").write_text(collections % (line, other))  # as the BioC-PMC API gives them
    *listed, third = read_documents(tmp_path / "pmc.json")
    assert (listed, third.id, third.line) == ([first, second], "9", 3)
    assert first.text == "Aspirin  It helps.  Aspirin"
    assert first.entities == (Entity(20, 27, "Chemical"),)
    assert first.passages == (Passage(0, 7, "title"), Passage(9, 27, "abstract"))


@pytest.mark.parametrize(
    ("value", "expected"), [("0.5", 0.5), (1, 1.0), ("high", None), ("nan", None), ("1e400", None), (87, None)]
)
def test_a_confidence_of_bioc_is_a_probability_or_none(tmp_path, value, expected):
    annotation = {"infons": {"type": "X", "confidence": value}, "locations": [{"offset": 0, "length": 1}]}
    passages = [{"offset": 0, "text": "a", "annotations": [annotation]}]
    (tmp_path / "a.json").write_text(json.dumps({"id": "1", "passages": passages}))
    (document,) = read_documents(tmp_path / "a.json")
    assert document.entities == (Entity(0, 1, "X", expected),)


def test_null_counts_as_absent(tmp_path):
    none = {"infons": None, "sentences": None, "annotations": None, "relations": None}
    location = {"offset": 0, "length": 4}
    annotation = {"infons": {"type": "X"}, "text": None, "locations": [location]}
    passages = [{"offset": 0, "text": "gout", **none}, {"offset": 5, "text": "flu", **none, "annotations": []}]
    passages[0]["annotations"] = [annotation]
    (tmp_path / "a.json").write_text(json.dumps({"id": "1", "passages": passages, "annotations": None}))
    (document,) = read_documents(tmp_path / "a.json")
    assert (document.text, document.entities) == ("gout flu", (Entity(0, 4, "X"),))
    entity = {"start": 0, "end": 4, "type": "X", "text": None, "fragments": None, "identifier": None}
    line = {"id": None, "text": "gout", "entities": [entity], "passages": None, "sentences": None}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (document,) = read_documents(tmp_path / "a.jsonl")
    assert document == Document("1", "gout", (Entity(0, 4, "X"),))


def test_brat_files_may_be_gzip_and_in_upper_case(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"gout"))
    (tmp_path / "a.ann.gz").write_bytes(gzip.compress(b"T1\tDisease 0 4\tgout\n"))
    (tmp_path / "b.TXT").write_text("flu")
    (tmp_path / "b.Ann").write_text("T1\tDisease 0 3\tflu\n", encoding="utf-8-sig")
    first, second = read_documents(tmp_path)
    assert [(one.id, one.text, len(one.entities)) for one in (first, second)] == [
        ("a", "gout", 1),
        ("b", "flu", 1),
    ]
    assert [*read_documents(tmp_path / "a.txt.gz"), *read_documents(tmp_path / "b.Ann")] == [first, second]
    (tmp_path / "b.TXT").unlink()
    with Rejects(None, limit=1) as rejects:
        assert list(read_documents(tmp_path, rejects=rejects)) == [first]
    assert rejects.counts == {"annotations without a text": 1}


def test_a_folder_without_documents_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(RequestError, match=r"expected \.txt or \.ann files in it, found none"):
        list(read_documents(tmp_path))


def test_entities_of_jsonl_in_one_fragment_are_contiguous(tmp_path):
    entity = {"start": 0, "end": 4, "type": "X", "fragments": [[0, 4]]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "gout", "entities": [entity]}))
    (document,) = read_documents(tmp_path / "a.jsonl")
    assert document.entities == (Entity(0, 4, "X"),)


def test_bioc_memory_is_that_of_a_document_and_windows_have_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr("domain.biomedical.documents.json_stream.SIZE", 10_000)
    document = Document("", "word " * 4_000, (Entity(0, 4, "X"),))
    write_documents(tmp_path / "big.json", (replace(document, id=str(number)) for number in range(200)))
    assert (tmp_path / "big.json").stat().st_size > 4_000_000
    tracemalloc.start()
    count = sum(1 for _ in read_documents(tmp_path / "big.json"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 200
    assert peak < 1_000_000
    documents = [Document(f"d{start}", "".join(ALPHABET[start::5]), (Entity(0, 1, "X"),)) for start in range(5)]
    for size in (1, 7, 64):
        monkeypatch.setattr("domain.biomedical.documents.json_stream.SIZE", size)
        assert round_trip(tmp_path, "bioc", documents) == documents


def test_conll_with_more_columns_and_windows_line_ends(tmp_path):
    (tmp_path / "c.conll").write_bytes(
        b"-DOCSTART-\tX\tO\r\n\r\nAspirin\tNN\tS-C\tx\r\nhelps\tVB\tO\tx\r\n\r\nme\tPR\tO\tx\r\n"
    )
    columns = Columns(0, 2)
    rows = sentence_rows(tmp_path / "c.conll", columns=columns)
    first, second = (row for row in rows if isinstance(row, SentenceRow) and row.tokens)
    assert (first.tokens, first.entities, first.line, first.document) == (("Aspirin", "helps"), ((0, 1, "C"),), 3, 1)
    assert first.scheme == "IOBES"
    assert (second.line, second.document) == (6, 1)
    (tmp_path / "c.tsv").write_text("a\tB\nb\tI\n\nc\tO\n")  # without documents each sentence is one
    first, second = read_documents(tmp_path / "c.tsv")
    assert (first.id, first.text, first.entities) == ("c-1", "a b", (Entity(0, 3, ""),))
    assert (second.id, second.line) == ("c-2", 4)


@pytest.mark.parametrize(
    ("name", "tags"), [("c.tsv", ["I-C", "I-C", "B-C", "O"]), ("c.bilou", ["B-C", "L-C", "U-C", "O"])]
)
def test_iob1_and_bilou_are_converted_and_reported(tmp_path, capsys, name, tags):
    (tmp_path / name).write_text("".join(f"{word}\t{tag}\n" for word, tag in zip("abcd", tags, strict=True)))
    (document,) = read_documents(tmp_path / name)
    assert document.entities == (Entity(0, 3, "C"), Entity(4, 5, "C"))
    message = "IOB1, and are read as IOB2" if name == "c.tsv" else "BILOU, and are read as IOBES"
    assert f"{name}: the tags are {message}" in capsys.readouterr().err


def test_raw_text_keeps_its_line_ends_and_its_name(tmp_path):
    (tmp_path / "note.txt").write_bytes("\ufeffOne.\r\nTwo.\r".encode())
    (document,) = read_documents(tmp_path / "note.txt")
    assert (document.id, document.text) == ("note", "\ufeffOne.\r\nTwo.\r")
    assert [document.text for document in read_documents(tmp_path / "note.txt", "lines")] == ["One.", "Two."]
    (tmp_path / "b.TXT").write_text("two")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"three"))
    (tmp_path / "d.md").write_text("four")
    assert [document.id for document in read_documents(tmp_path)] == ["b", "c", "note"]


OVER = (Entity(0, 3, "X"),)
CANNOT = [
    ("conll", Document("1", "ab cd", (Entity(0, 5, "X", fragments=((0, 2), (3, 5))),)), "a discontinuous entity"),
    ("conll", Document("1", "ab cd", (Entity(0, 5, "X"), Entity(3, 5, "Y"))), "nested or overlapping entities"),
    ("conll", Document("1", "abcd", (Entity(0, 2, "X"),)), "an entity that begins or ends inside a token"),
    ("conll", Document("1", "a\tb", (), sentences=(((0, 3),),)), "a token that no line can hold"),
    (
        "conll",
        Document("1", "a b", (Entity(0, 3, "X"),), sentences=(((0, 1),), ((2, 3),))),
        "an entity over two sentences",
    ),
    ("conll", Document("1", "ab", (Entity(0, 2, "X\tY"),)), "a type that no line can hold"),
    ("pubtator", Document("1", "a\0b"), "NUL in the text"),
    ("pubtator", Document("1", "ab", (Entity(0, 2, "X\u2028Y"),)), "an entity that no line can hold"),
    ("pubtator", Document("1|t", "a"), "an id that no line can hold"),
    ("pubtator", Document("1", "a\tb", (Entity(0, 3, "X"),)), "an entity that no line can hold"),
    ("brat", Document("a/b", "x"), "an id that is no file name"),
    ("brat", Document("1", "x", (Entity(0, 1, "two words"),)), "an entity that no line can hold"),
    ("bioc", Document("1", "x", (Entity(0, 1, ""),)), "an entity without a type"),
    ("html", Document("1", "abc", (Entity(0, 2, "X"), Entity(1, 3, "X"))), "nested or overlapping entities"),
    ("jsonl", Document("1", "\ud800"), "not valid Unicode"),
    ("jsonl", Document("1", "abc", (Entity(2, 2, "X"),)), "an entity with offsets that cannot be"),
    ("conll", Document("1", "abc", sentences=(((0, 2), (1, 3)),)), "tokens with offsets that cannot be"),
    ("bioc", Document("1", "abc", passages=(Passage(-1, 3),)), "passages with offsets that cannot be"),
]


@pytest.mark.parametrize(
    ("name", "document", "reason"), CANNOT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_documents_that_a_format_cannot_hold_are_refused_and_counted(tmp_path, name, document, reason):
    with Rejects(None, limit=1) as rejects:
        write_documents(tmp_path / "out", [document, Document("2", "fine")], name, rejects)
    assert rejects.counts == {reason: 1}
    if name != "html":
        assert [document.text for document in read_documents(tmp_path / "out", name)] == ["fine"]
    with pytest.raises(RequestError, match=reason) as caught:
        write_documents(tmp_path / "none", [document], name)
    assert "JSONL" in str(caught.value)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("path", "name"), [("a.jsonl.gz", None), (".", "brat"), ("..", "brat"), ("link", "brat"), ("b.GZ", "conll")]
)
def test_a_name_that_no_output_can_have_is_refused(tmp_path, monkeypatch, path, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with pytest.raises(RequestError, match=r"output: expected a (new folder|name)"):
        write_documents(path, [Document("x", "other")], name)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "link"}


def test_a_brat_folder_with_files_is_not_overwritten(tmp_path):
    (tmp_path / "x.txt").write_text("mine")
    with pytest.raises(RequestError, match="new folder"):
        write_documents(tmp_path, [Document("x", "other")], "brat")
    assert (tmp_path / "x.txt").read_text() == "mine"


def test_missing_spacy_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(RequestError, match="pip install spacy"):
        Document("1", "gout").to_spacy()


def test_spacy_has_the_same_entities():
    spacy = pytest.importorskip("spacy")
    entities = (Entity(0, 5, "Gene", identifier="5743"), Entity(25, 46, "Disease"), Entity(31, 46, "Disease"))
    doc = Document("1", "COX-2 inhibitors against acute gouty arthritis.", entities).to_spacy(spacy.blank("en"))
    entities = [(entity.text, entity.label_, entity.kb_id_) for entity in doc.ents]
    assert entities == [("COX-2", "Gene", "5743"), ("acute gouty arthritis", "Disease", "")]
    assert len(doc.spans["entities"]) == 3
