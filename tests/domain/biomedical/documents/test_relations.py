"""Identifiers, composite mentions and relations, from each format to each other one."""

import csv
import gzip
import json
import random
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from bioc import biocjson, biocxml
from random_documents import SUFFIXES, random_document
from real_files import RELATIONS, with_relations

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.convert import convert_file
from domain.biomedical.documents.document import (
    Argument,
    Document,
    Entity,
    Passage,
    Reading,
    Relation,
    split_identifiers,
)
from domain.biomedical.documents.formats import read_documents, write_documents, writer_of

EXACT = ["jsonl", "bioc", "bioc-xml", "pubtator", "brat"]
"""Formats from which a document is read as it was written."""


@pytest.mark.parametrize(
    ("identifier", "names"),
    [
        ("D007674|D008107", ["D007674", "D008107"]),
        ("D001+D002", ["D001", "D002"]),
        ("1029,1030", ["1029", "1030"]),
        ("RS#:1;CorrespondingGene:2", ["RS#:1", "CorrespondingGene:2"]),
        ("p|SUB|V|1763|M", ["p|SUB|V|1763|M"]),
        ("c|Allele|R|714,|DEL|46|S", ["c|Allele|R|714", "|DEL|46|S"]),
        ("c|SUB|G|2633+1|C,9606", ["c|SUB|G|2633+1|C", "9606"]),
        (" D003924", ["D003924"]),
        ("-1", []),
        ("-", []),
        ("D1|-1", ["D1"]),
        ("", []),
    ],
)
def test_identifiers_of_composite_mentions_are_divided_and_those_of_variants_are_not(identifier, names):
    assert list(split_identifiers(identifier)) == names
    assert list(Entity(0, 1, "X", identifier=identifier or None).identifiers) == names


def random_relations(draw, entities):
    """Relations between mentions, concepts and both, with and without roles."""
    relations = []
    for _ in range(draw.randint(0, 4)):
        size = draw.choice([2, 2, 2, 3])
        mentions = [draw.randrange(len(entities)) for _ in range(size)] if entities else []
        concepts = draw.choices(["D1", "MESH:D2", "p|SUB|V|1|M", "7157", "é<&\"'", "a b"], k=size)
        targets = draw.choice(
            [mentions or concepts, concepts, [*mentions[:1], *concepts[1:]] if mentions else concepts]
        )
        roles = draw.choice(
            [["Chemical", "Disease"], ["subject", "object"], ["object", "subject"], ["Arg1", "Arg2"], []]
        )
        roles = [*roles, "", "", ""] if len(roles) < size or draw.random() < 0.1 else roles
        kind, novel = draw.choice(["CID", "Association", "é<&>"]), draw.choice([None, True, False])
        confidence = draw.choice([None, draw.random()])
        relations.append(Relation(kind, tuple(map(Argument, targets, roles)), novel, confidence))
    return tuple(relations)


def random_annotated(draw, name):
    """A document with everything that documents hold."""
    document = random_document(draw, name)
    entities = tuple(
        replace(
            entity,
            identifier=draw.choice([None, "D1", "D1|D2", " D3", "-1", "MESH:D4,MESH:D5", "p|SUB|V|1|M"]),
            database=draw.choice([None, None, "MESH", "ncbi_gene"]),
            parts=draw.choice([(), (), ("renal failure", "hepatic failure"), ("a|b", "c"), ("0.5",)]),
            is_part=draw.random() < 0.1,
        )
        for entity in document.entities
    )
    half = len(document.text) // 2
    passages = [Passage(0, half, "title"), Passage(half + (document.text[half : half + 1] == " "), len(document.text))]
    return replace(
        document,
        entities=entities,
        passages=draw.choice([(), tuple(passages)]),
        relations=random_relations(draw, entities),
        fields=draw.choice([{}, {"year": 2001}]),
    )


@pytest.mark.parametrize("name", EXACT)
def test_a_document_is_read_as_it_was_written_less_what_is_counted(tmp_path, name, monkeypatch):
    monkeypatch.setattr("bertrelay.files.sync_contents", lambda _: None)  # of hundreds of files
    draw = random.Random(7)
    documents = [random_annotated(draw, f"d{number:04}") for number in range(150)]
    path, keep = tmp_path / f"documents{SUFFIXES[name]}", ("year",) * (name == "jsonl")
    losses = [Counter() for _ in documents]
    fitted = [writer_of(name).fit(document, lost) for document, lost in zip(documents, losses, strict=True)]
    with Rejects(None, limit=1) as refused:
        write_documents(path, fitted, name, refused)
    back = {document.id: document for document in read_documents(path, reading=Reading(keep=keep))}
    assert len(back) == len(documents) - refused.counts.total() > 20
    assert [back[held.id] for held in fitted if held.id in back] == [held for held in fitted if held.id in back]
    for document, held, lost in zip(documents, fitted, losses, strict=True):
        assert lost.total() or replace(held, passages=()) == replace(document, passages=())
        assert lost.total() >= len(document.entities) - len(held.entities)
    assert (name == "jsonl") == (sum(losses, Counter()).total() == 0)


def unpacked(path):
    """The lines of a file that are not blank, without the tabs at the ends of some in BC5CDR."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return [line.rstrip("\t") for line in lines if line]


def lines_of(path):
    """The annotations of a PubTator file, by the number of their fields; independent of the reader."""
    rows = [line.split("\t") for line in unpacked(path) if "\t" in line]
    entities = [(one, int(start), int(end), *rest) for one, start, end, *rest in (row for row in rows if len(row) > 5)]
    return entities, [tuple(row) for row in rows if len(row) < 6]


def written(documents):
    """Entities and relations as lines of PubTator have them."""
    novelty = {True: ["Novel"], False: ["No"], None: []}
    entities = [
        (
            document.id, entity.start, entity.end, entity.text, entity.type, entity.identifier or "-",
            *(["|".join(entity.parts)] if entity.parts else []),
        )
        for document in documents
        for entity in document.entities
    ]  # fmt: skip
    relations = [
        (document.id, relation.type, *(argument.target for argument in relation.arguments), *novelty[relation.novel])
        for document in documents
        for relation in document.relations
    ]
    return entities, relations


CORPORA = {
    "biored/Test.PubTator.gz": (3535, 1163),
    "biored/Dev.PubTator.gz": (3533, 1162),
    "bc5cdr/CDR_TrainingSet.PubTator.gz": (9385, 1038),
    "bc5cdr/CDR_DevelopmentSet.PubTator.gz": (9591, 1012),
    "bc5cdr/CDR_TestSet.PubTator.gz": (9809, 1066),
}


@with_relations
@pytest.mark.parametrize("name", CORPORA)
def test_published_corpora_keep_every_entity_identifier_and_relation(tmp_path, name):
    expected = lines_of(RELATIONS / name)
    assert tuple(map(len, expected)) == CORPORA[name]
    source = RELATIONS / name
    for step, suffix in enumerate((".xml", ".json", ".jsonl", ".pubtator")):
        target = tmp_path / f"{step}{suffix}"
        converted = convert_file(source, target)
        assert (converted.entities, converted.relations, converted.left_out) == (*CORPORA[name], {})
        assert written(list(read_documents(target))) == expected
        source = target
    assert list(filter(None, source.read_text().splitlines())) == unpacked(RELATIONS / name)


@with_relations
@pytest.mark.parametrize("kind", ["xml", "json"])
def test_bioc_of_biored_has_what_its_pubtator_has(kind):
    entities, relations = written(list(read_documents(RELATIONS / f"biored/Test.BioC.{kind}.gz")))
    expected = lines_of(RELATIONS / "biored/Test.PubTator.gz")
    assert (sorted(entities), sorted(relations)) == tuple(map(sorted, expected))


@with_relations
def test_composite_mentions_of_bc5cdr_are_the_same_in_bioc_and_pubtator(tmp_path):
    """The passages of this file count `'` as `&apos;`, its annotations do not."""
    folder = RELATIONS / "bc5cdr-sample"
    converted = convert_file(folder / "CDR_sample.gold.BioC.xml.gz", tmp_path / "gold.pubtator")
    assert converted.left_out == {
        "a database of identifiers": 945,
        "an individual mention of a composite one": 11,
    }
    lines = (tmp_path / "gold.pubtator").read_text().splitlines()
    assert list(filter(None, lines)) == unpacked(folder / "CDR_sample.gold.PubTator.gz")


@with_relations
@pytest.mark.parametrize("suffix", [".xml", ".json"])
def test_the_package_bioc_reads_written_files_with_equal_counts(tmp_path, suffix):
    load = biocxml.load if suffix == ".xml" else biocjson.load
    for number, name in enumerate(("biored/Test.PubTator.gz", "bc5cdr/CDR_TestSet.PubTator.gz")):
        path = tmp_path / f"{number}{suffix}"
        convert_file(RELATIONS / name, path)
        with path.open(encoding="utf-8") as file:
            collection = load(file)
        annotations = [
            one for document in collection.documents for part in document.passages for one in part.annotations
        ]
        relations = [one for document in collection.documents for one in document.relations]
        assert (len(annotations), len(relations)) == CORPORA[name]
        identifiers = Counter(one.infons.get("identifier", "-") for one in annotations)
        assert identifiers == Counter(fields[5] for fields in lines_of(RELATIONS / name)[0])


TITLE = "1|t|Aspirin and gout.\n1|a|Bad.\n"
ASPIRIN, GOUT = "1\t0\t7\tAspirin\tChemical\tD1\n", "1\t12\t16\tgout\tDisease\tD2\n"


def read(path, *lines, **more):
    """The one document of a file with these lines."""
    path.write_text("".join(lines))
    (document,) = read_documents(path, **more)
    return document


def test_relations_of_pubtator_have_roles_novelty_and_direction(tmp_path, capsys):
    lines = [
        "1\tCID\tD1\tD2\n",
        "1\tAssociation\t24\t7157\tNovel\n",
        "1\tBind\tD1\t24\tNo\n",
        "1\tD1\t24\tSubject:24|0.9\n",
    ]
    more = ["1\tCID\tD1\tD3\t0.25\n", "1\tCID\t-\tD3\n", "1\tD8\tD9\tSubject:D8\n", "1\tBind\tD1\tD4\todd\n"]
    document = read(tmp_path / "a.pubtator", TITLE, ASPIRIN, *lines, *more)
    cid = (Argument("D1", "Chemical"), Argument("D2", "Disease"))
    assert document.relations == (
        Relation("CID", cid),
        Relation("Association", (Argument("24"), Argument("7157")), True),
        Relation("Bind", (Argument("D1", "object"), Argument("24", "subject")), False),
        Relation("CID", (cid[0], Argument("D3", "Disease")), confidence=0.25),
        Relation("Bind", (Argument("D1"), Argument("D4"))),
    )
    message = capsys.readouterr().err
    for kind in ("1 × a relation without two concepts", "1 × the subject of no relation", "1 × a further field"):
        assert kind in message


def test_a_seventh_field_of_pubtator_has_a_probability_or_individual_mentions(tmp_path):
    lines = ["1\t0\t7\tAspirin\tChemical\tMESH:D1\t0.79\n", "1\t12\t16\tgout\tDisease\tD2|D3\tgout|bad gout\n"]
    assert read(tmp_path / "a.pubtator", TITLE, *lines).entities == (
        Entity(0, 7, "Chemical", 0.79, "MESH:D1"),
        Entity(12, 16, "Disease", identifier="D2|D3", parts=("gout", "bad gout")),
    )


def bioc(path, annotations, relations, passages=()):
    text = "Aspirin and gout."
    parts = [{"offset": 0, "text": text, "annotations": annotations, "relations": relations[:1]}, *passages]
    return read(path, json.dumps({"id": "1", "passages": parts, "relations": relations[1:]}))


def annotation(name, start, end, **infons):
    return {"id": name, "infons": {"type": "X", **infons}, "locations": [{"offset": start, "length": end - start}]}


def test_relations_of_bioc_are_between_nodes_or_concepts_of_any_form(tmp_path, capsys):
    relations = [
        {"id": "R1", "infons": {"type": "Treats", "score": "0.5"},
         "nodes": [{"refid": "b", "role": "of"}, {"refid": "a"}]},
        {"infons": {"relation": "CID", "Chemical": "D1", "Disease": "D2"}},
        {"infons": {"entity2": "D2", "entity1": "p|SUB|V|1|M", "type": "Association", "novel": "No"}},
        {"infons": {"role1": {"identifier": "MESH:D1"}, "role2": "Disease|MESH:D2", "type": "Cause"},
         "nodes": [{"refid": "a", "role": "0,1"}]},
        {"infons": {"type": "Of relations"}, "nodes": [{"refid": "R1"}, {"refid": "a"}]},
        {"infons": {"type": "Alone"}, "nodes": [{"refid": "a"}]},
        "no object",
    ]  # fmt: skip
    document = bioc(tmp_path / "a.json", [annotation("a", 0, 7, note="odd"), annotation("b", 12, 16)], relations)
    assert document.relations == (
        Relation("CID", (Argument("D1", "Chemical"), Argument("D2", "Disease"))),
        Relation("Association", (Argument("p|SUB|V|1|M"), Argument("D2")), False),
        Relation("Cause", (Argument("MESH:D1"), Argument("MESH:D2"))),
        Relation("Treats", (Argument(1, "of"), Argument(0)), confidence=0.5),
    )
    message = capsys.readouterr().err
    assert "2 × a relation without a type or two arguments" in message and "1 × a further infon" in message
    assert "1 × a relation without one of its entities" in message


def test_a_database_of_bioc_is_an_infon_or_the_name_of_one(tmp_path):
    annotations = [
        annotation("1", 0, 7, MESH="D1"),
        annotation("2", 0, 7, OMIM="215600"),
        annotation("3", 12, 16, identifier="9606", database="ncbi_taxonomy"),
        annotation("4", 12, 16, identifier="-"),
    ]
    document = bioc(tmp_path / "a.json", annotations, [])
    assert [(entity.identifier, entity.database) for entity in document.entities] == [
        ("D1", "MESH"),
        ("OMIM:215600", "OMIM"),
        ("9606", "ncbi_taxonomy"),
        (None, None),
    ]


def test_a_relation_of_an_entity_at_wrong_offsets_is_left_out_with_it(tmp_path, capsys):
    relations = [{"infons": {"type": "Y"}, "nodes": [{"refid": name} for name in pair]} for pair in ("ab", "bc")]
    wrong = {**annotation("a", 0, 7), "text": "gout"}
    parts = [{"offset": 0, "text": "Aspirin", "annotations": [wrong, annotation("b", 0, 3), annotation("c", 3, 7)]}]
    document = read(
        tmp_path / "a.json",
        json.dumps({"id": "1", "passages": parts, "relations": relations}),
        reading=Reading(misplaced="drop"),
    )
    assert document.relations == (Relation("Y", (Argument(0), Argument(1))),)
    assert "1 × a relation without one of its entities" in capsys.readouterr().err


def test_relations_and_several_references_of_brat_are_read(tmp_path, capsys):
    (tmp_path / "1.txt").write_text("Aspirin and gout.")
    lines = [
        "R1\tTreats Arg1:T1 Arg2:T2\t", "T1\tChemical 0 7\tAspirin", "T2\tDisease 12 16\tgout", "*\tEquiv T1 T2 T1",
        "N1\tReference T1 MESH:D1\tx", "N2\tReference T1 CHEBI:1\tx", "#1\tAnnotatorNotes R1\tconfidence 0.5",
        "R2\tTreats Arg1:E1 Arg2:T2", "R3\tTreats Arg1:T1 Arg2:T9", "E1\tRises:T2 Theme:T1", "",
    ]  # fmt: skip
    document = read(tmp_path / "1.ann", "\n".join(lines))
    assert document.entities[0].identifier == "MESH:D1|CHEBI:1"
    assert document.relations == (
        Relation("Treats", (Argument(0, "Arg1"), Argument(1, "Arg2")), confidence=0.5),
        Relation("Equiv", (Argument(0), Argument(1), Argument(0))),
    )
    message = capsys.readouterr().err
    for kind in ("a relation that is not between mentions", "an event", "a relation without one of its entities"):
        assert f"1 × {kind}" in message


def test_relations_of_another_tool_in_jsonl_are_counted_and_the_document_is_read(tmp_path, capsys):
    entities = [{"start": 0, "end": 7, "type": "X"}, {"start": 12, "end": 16, "type": "Y"}]
    relations = [
        {"type": "Treats", "arguments": [{"entity": 0, "role": "subject"}, {"concept": "D2"}], "novel": True},
        {"id": 1, "from_id": 0, "to_id": 1, "type": "Treats"},
        {"type": "Treats", "arguments": [{"entity": 0}, {"entity": 7}]},
        {"type": "Treats", "arguments": [{"entity": 0, "concept": "D1"}, {"entity": 1}]},
    ]
    value = {"text": "Aspirin and gout.", "entities": entities, "relations": relations}
    document = read(tmp_path / "a.jsonl", json.dumps(value) + "\n")
    assert document.relations == (Relation("Treats", (Argument(0, "subject"), Argument("D2")), True),)
    assert "3 × a relation of another shape" in capsys.readouterr().err


def test_records_of_one_id_are_passages_of_a_document_where_that_is_said(tmp_path):
    other = "2|t|Flu.\n2|a|\n"
    lines = [TITLE, ASPIRIN, "\n", "1|t|Gout.\n1|a|Worse.\n1\t0\t4\tGout\tDisease\tD2\n1\tCID\tD1\tD2\n\n", other]
    (tmp_path / "a.pubtator").write_text("".join(lines))
    with pytest.raises(RequestError, match=r'an id that another document has .*`repeated_ids = "passages"`'):
        list(read_documents(tmp_path / "a.pubtator"))
    first, second = read_documents(tmp_path / "a.pubtator", reading=Reading(repeated_ids="passages"))
    assert (first.id, first.text, second.id) == ("1", "Aspirin and gout. Bad.\nGout. Worse.", "2")
    assert [(entity.start, entity.text) for entity in first.entities] == [(0, "Aspirin"), (23, "Gout")]
    assert [first.text[passage.start : passage.end] for passage in first.passages] == [
        "Aspirin and gout.", "Bad.", "Gout.", "Worse.",
    ]  # fmt: skip
    assert len(first.relations) == 1
    (tmp_path / "a.pubtator").write_text("".join([*lines[:3], "1|t|No abstract\n\n", other]))
    with Rejects(None, limit=1) as rejects:
        documents = list(
            read_documents(tmp_path / "a.pubtator", rejects=rejects, reading=Reading(repeated_ids="passages"))
        )
    assert ([document.id for document in documents], rejects.counts) == (["2"], {"no abstract line": 1})
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(RequestError, match="only pubtator has ids that repeat, found jsonl"):
        list(read_documents(tmp_path / "a.jsonl", reading=Reading(repeated_ids="passages")))


XML = "<collection><source/><date/><key/>\n<document><id>7</id>{}</document>\n</collection>"
PASSAGE = "<passage><infon key='type'>title</infon><offset>0</offset><text>a &lt; b</text>{}</passage>"
SPAN = "<annotation id='1'><infon key='type'>X</infon><location offset='{}' length='1'/><text>a</text></annotation>"


def test_bioc_xml_of_both_versions_is_read(tmp_path):
    second = PASSAGE.replace("<offset>0</offset>", "").replace("<passage>", "<passage offset='0'>")
    expected = Document("7", "a < b", (Entity(0, 1, "X"),), (Passage(0, 5, "title"),))
    for number, text in enumerate((XML, XML.replace("<document><id>7</id>", "<document id='7'>"))):
        part = (PASSAGE, second)[number].format(SPAN.format(0))
        path = tmp_path / f"{number}.xml"
        path.write_bytes(gzip.compress(("<!DOCTYPE collection SYSTEM 'BioC.dtd'>" + text.format(part)).encode()))
        (document,) = read_documents(path)
        assert (document, document.line) == (expected, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (XML.format(PASSAGE.format(SPAN.format(2))), "line 2, record 7: an entity whose text is not at its offsets"),
        (XML.format(PASSAGE.format(SPAN.format("x"))), "line 2: an offset that is no number"),
        (XML.format(PASSAGE.format("&nbsp;")), "line 2: broken XML (undefined entity)"),
        (f"<!DOCTYPE collection SYSTEM 'BioC.dtd'>{XML.format(PASSAGE.format('&nbsp;'))}", "found &nbsp;"),
        (XML.format(PASSAGE)[:90], "line 2: broken XML"),
        ("<PubmedArticleSet/>", "expected BioC XML, a `collection`, found another root"),
    ],
)
def test_a_fault_of_bioc_xml_is_reported_with_its_place(tmp_path, text, expected):
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(RequestError) as caught:
        list(read_documents(tmp_path / "a.xml"))
    assert expected in str(caught.value)


def test_bioc_xml_is_what_another_parser_reads_and_control_characters_are_refused(tmp_path):
    text = 'a\r\n<\t&]]>"é😀'
    document = Document(
        "<7>", text, (Entity(0, len(text), 'x"&'),), relations=(Relation("é", (Argument(0, '"r\n'), Argument(0))),)
    )
    write_documents(tmp_path / "a.xml", [document])
    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert [child.tag for child in root] == ["source", "date", "key", "document"]
    assert (root.findtext("document/id"), root.findtext("document/passage/text")) == ("<7>", text)
    assert root.find("document/relation/node").get("role") == '"r\n'
    assert list(read_documents(tmp_path / "a.xml")) == [document]
    with pytest.raises(RequestError, match="a character that XML cannot hold"):
        write_documents(tmp_path / "b.xml", [Document("1", "a\x0bb")])


def test_bioc_xml_memory_is_that_of_a_document(tmp_path):
    document = Document("", "word " * 4_000, (Entity(0, 4, "X"),))
    write_documents(tmp_path / "big.xml", (replace(document, id=str(number)) for number in range(200)))
    tracemalloc.start()
    count = sum(1 for _ in read_documents(tmp_path / "big.xml"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 200 and (tmp_path / "big.xml").stat().st_size > 4_000_000
    assert peak < 1_000_000


NESTED = Document(
    "1",
    "renal and hepatic failure",
    (
        Entity(0, 25, "X", 0.5, "D1|D2", parts=("renal failure", "hepatic failure")),
        Entity(0, 25, "X", identifier="D1", fragments=((0, 5), (18, 25)), is_part=True),
        Entity(10, 25, "X", identifier="D2", is_part=True),
        Entity(0, 3, "X"),
    ),
    relations=(Relation("Equiv", (Argument(1), Argument(2))), Relation("CID", (Argument("D1"), Argument("D2")))),
)


@pytest.mark.parametrize(
    ("name", "entities", "left_out"),
    [
        ("a.tsv", 1, {"a nested or overlapping entity": 1, "a discontinuous entity": 1,
                      "a relation between mentions": 1, "an entity that begins or ends inside a token": 1}),
        ("a.html", 1, {"a discontinuous entity": 1, "a nested or overlapping entity": 2,
                       "a relation without one of its entities": 1}),
        ("a.csv", 3, {"an entity without a relation": 1}),
        ("a.pubtator", 2, {"an individual mention of a composite one": 2, "a relation without one of its entities": 1}),
        ("folder", 4, {"a relation between concepts": 1, "the names of individual mentions": 1}),
    ],
)  # fmt: skip
def test_a_conversion_leaves_out_what_a_format_lacks_and_counts_it(tmp_path, name, entities, left_out):
    write_documents(tmp_path / "in.jsonl", [NESTED])
    converted = convert_file(tmp_path / "in.jsonl", tmp_path / name)
    assert (converted.documents, converted.entities) == (1, entities)
    assert {kind: converted.left_out[kind] for kind in left_out} == left_out
    assert name.endswith((".html", ".csv")) or len(next(read_documents(tmp_path / name)).entities) == entities


def test_triples_are_rows_of_relations_of_two_with_mentions_identifiers_and_types(tmp_path):
    entities = (Entity(0, 4, "Chemical", 0.9, "D7|D8"), Entity(12, 16, "Disease", 0.8), Entity(17, 22, "Disease"))
    relations = (
        Relation("causes", (Argument(1, "object"), Argument(0, "subject")), None, 0.75),
        Relation("CID", (Argument("D8"), Argument("D9")), True),
        Relation("Equiv", (Argument(0), Argument(1), Argument(2))),
    )
    document = Document("a,1", 'Lead causes "x"y fever', entities, relations=relations)
    write_documents(tmp_path / "in.jsonl", [document])
    converted = convert_file(tmp_path / "in.jsonl", tmp_path / "out.csv")
    assert (converted.relations, converted.left_out) == (
        2, {"a relation of other than two": 1, "an entity without a relation": 1}
    )  # fmt: skip
    with (tmp_path / "out.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "document": "a,1", "relation": "causes", "subject": "D7|D8", "subject_mention": "Lead",
        "subject_type": "Chemical", "object": "", "object_mention": '"x"y', "object_type": "Disease",
        "novel": "", "confidence": "0.75",
    }  # fmt: skip
    assert [second[name] for name in ("subject", "subject_mention", "object", "object_mention", "novel")] == [
        "D8", "Lead", "D9", "", "true"
    ]  # fmt: skip
    with pytest.raises(RequestError, match="triples is only written"):
        list(read_documents(tmp_path / "out.csv"))


def test_writing_without_a_conversion_says_how_many_relations_a_format_lacks(tmp_path, capsys):
    relation = Relation("CID", (Argument("D1"), Argument("D2")))
    write_documents(tmp_path / "a.tsv", [Document("1", "gout", relations=(relation, relation))])
    assert "a.tsv: left out, as conll cannot hold them: 2 × a relation" in capsys.readouterr().err


def test_a_docbin_of_spacy_holds_tokens_and_overlapping_entities(tmp_path):
    pytest.importorskip("spacy")
    (tmp_path / "a.tsv").write_text("No\tO\ngout\tB-X\n.\tO\n\nFever\tO\n\n")
    write_documents(tmp_path / "in.jsonl", [NESTED, *read_documents(tmp_path / "a.tsv")])
    converted = convert_file(tmp_path / "in.jsonl", tmp_path / "out.spacy")
    assert converted.left_out["a discontinuous entity"] == converted.left_out["a relation between concepts"] == 1
    first, *others = read_documents(tmp_path / "out.spacy")
    assert [(entity.start, entity.end, entity.identifier) for entity in first.entities] == [
        (0, 25, "D1|D2"),
        (10, 25, "D2"),
    ]
    assert others == list(read_documents(tmp_path / "a.tsv"))
    (tmp_path / "b.spacy").write_bytes(b"no DocBin")
    with pytest.raises(RequestError, match="expected a DocBin of spaCy"):
        list(read_documents(tmp_path / "b.spacy"))


def test_a_docbin_without_spacy_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy.tokens", None)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(RequestError, match="pip install spacy"):
        convert_file(tmp_path / "a.jsonl", tmp_path / "a.spacy")
    assert not (tmp_path / "a.spacy").exists()
