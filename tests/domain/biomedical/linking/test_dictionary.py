"""Terminologies of every format give the same concepts."""

import gzip

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.linking.dictionary import Concept, Dictionary, read_dictionary
from domain.biomedical.linking.settings import DictionarySource

TERMS = "D1|C9||Ataxia|Ataxy\nD2||Gout\n"
OBO = """format-version: 1.4

[Term]
id: D1
name: Ataxia
alt_id: C9
synonym: "Ataxy" EXACT [someone]

[Term]
id: D3
name: old name
is_obsolete: true

[Typedef]
id: part_of
name: part of

[Term]
id: D2
name: Gout
"""
MESH = """<?xml version="1.0"?>
<DescriptorRecordSet>
<DescriptorRecord><DescriptorUI>D1</DescriptorUI><DescriptorName><String>Ataxia</String></DescriptorName>
<ConceptList><Concept><TermList><Term><String>Ataxia</String></Term><Term><String>Ataxy</String></Term></TermList>
</Concept></ConceptList></DescriptorRecord>
<DescriptorRecord><DescriptorUI>D2</DescriptorUI><ConceptList><Concept><TermList><Term><String>Gout</String></Term>
</TermList></Concept></ConceptList></DescriptorRecord>
</DescriptorRecordSet>
"""
RRF = """D1|ENG|P|L1|PF|S1|Y|A1||M1|D1|MSH|MH|D1|Ataxia|0|N|256|
D1|ENG|S|L2|PF|S2|Y|A2||M1|D1|MSH|EN|D1|Ataxy|0|N||
D1|GER|S|L3|PF|S3|Y|A3||M1|D1|MSH|EN|D1|Ataxie|0|N||
D1|ENG|S|L4|PF|S4|Y|A4||M1|D1|MSH|EN|D1|Obs ataxia|0|O||
D2|ENG|P|L5|PF|S5|Y|A5||M2|D2|MSH|MH|D2|Gout|0|N|256|
"""
CSV = "identifier,name\nD1,Ataxia\nD1,Ataxy\nD2,Gout\n"
FILES = {"a.txt": TERMS, "a.obo": OBO, "a.xml": MESH, "MRCONSO.RRF": RRF, "a.csv": CSV}


def concepts_in(path, content, **settings):
    path.write_text(content, "utf-8")
    return list(read_dictionary([DictionarySource(path=str(path), **settings)]))


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_names_of_the_same_concepts(tmp_path, name):
    dictionary = Dictionary.of(concepts_in(tmp_path / name, FILES[name]))
    assert [identifiers[0] for identifiers in dictionary.identifiers] == ["D1", "D2"]
    assert (dictionary.names, dictionary.concepts.tolist()) == (["ataxia", "ataxy", "gout"], [0, 0, 1])
    assert dictionary.is_preferred.tolist() == [True, False, True]


def test_other_identifiers_are_those_of_the_same_concept(tmp_path):
    for name in ("a.txt", "a.obo"):
        assert concepts_in(tmp_path / name, FILES[name])[0][:2] == (("D1", "C9"), ("Ataxia", "Ataxy"))


def test_concepts_of_one_identifier_are_joined_without_their_prefix():
    concepts = [
        Concept(("MESH:D1",), ("Ataxia",)),
        Concept(("D2",), ("Gout", "gout!")),
        Concept(("mesh:D1",), ("A-T",)),
    ]
    dictionary = Dictionary.of(concepts, ["MESH:"])
    assert dictionary.identifiers == [("MESH:D1",), ("D2",)]
    assert (dictionary.names, dictionary.concepts.tolist()) == (["ataxia", "a t", "gout"], [0, 0, 1])


def test_languages_of_the_metathesaurus_are_chosen(tmp_path):
    german = concepts_in(tmp_path / "MRCONSO.RRF", RRF, languages=["GER"])
    assert [concept.names for concept in german] == [("Ataxie",)]
    assert len(concepts_in(tmp_path / "MRCONSO.RRF", RRF, languages=[])) == 4


def test_unusable_records_are_counted_with_their_line(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"D1||Ataxia\nno bars\n||nameless\nD2||\n"))
    with pytest.raises(RequestError, match=r"a\.txt\.gz, line 2: without `\|\|`"):
        list(read_dictionary([DictionarySource(path=str(path))]))
    rejects = Rejects(tmp_path / "rejects.jsonl", limit=1)
    with rejects:
        assert len(list(read_dictionary([DictionarySource(path=str(path))], rejects))) == 1
    assert rejects.counts.total() == 3


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.dat", "x", "expected a file of .csv, "),
        ("a.obo", "[Typedef]\nid: a\nname: b\n", "expected concepts with names, found none"),
        ("a.xml", "<DescriptorRecordSet><DescriptorRecord>", "is no XML, or cut off"),
        ("a.RRF", "D1|ENG|x\n", "expected 17 fields or more between bars, found 3"),
        ("a.csv", "id,label\n1,x\n", "identifier"),
    ],
)
def test_a_file_that_is_none_is_an_error(tmp_path, name, content, error):
    with pytest.raises(RequestError, match=error.replace(".", r"\.")):
        concepts_in(tmp_path / name, content)
