import gzip
import io
import json
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.pretraining.readers import NO_TEXT, NOT_TRAIN, Item, SkippedDocument, TextDocument, files_of, read_documents
from domain.pretraining.settings import DocumentSource


def read(path: Path, **settings: Any) -> list[Item]:
    source = DocumentSource(path=str(path), **settings)
    return [item for file in files_of(source) for item in read_documents(source, file)]


def texts(path: Path, **settings: Any) -> list[str]:
    return [item.text for item in read(path, **settings) if isinstance(item, TextDocument)]


def written(path: Path, content: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


# Tables and plain text


def test_rows_of_jsonl_are_documents(tmp_path: Path) -> None:
    rows = [{"n": 7, "patient": "p1", "body": "One.\nTwo."}, {"n": 8, "body": "Three."}, {"n": 9, "body": " "}]
    file = written(tmp_path / "a.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))
    assert read(file, text="body", id="n", group="patient") == [
        TextDocument("One.\nTwo.", "7", "p1"),
        TextDocument("Three.", "8"),
        SkippedDocument(NO_TEXT),
    ]


def test_rows_that_cannot_be_read_are_unusable_and_those_without_text_are_left_out(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": 5}\n{"text": null}\n{"text"\n')
    assert read(file)[0] == TextDocument("a")
    assert [(item.line, item.reason) for item in read(file) if isinstance(item, Unusable)] == [
        (2, "not text"),
        (4, "not JSON"),
    ]
    assert read(file)[2] == SkippedDocument(NO_TEXT)


@pytest.mark.parametrize("named", [{}, {"split": "split"}])
def test_notes_of_validation_and_test_patients_are_left_out(tmp_path: Path, named: dict[str, str]) -> None:
    table = {
        "hadm_id": [1, 2, 3, 4],
        "subject_id": [10, 11, 12, None],
        "text": ["train", "validation", "test", "train"],
        "split": ["train", "validation", "test", "train"],
    }
    pq.write_table(pa.table(table), tmp_path / "notes.parquet")
    assert read(tmp_path / "notes.parquet", id="hadm_id", group="subject_id", **named) == [
        TextDocument("train", "1", "10"),
        SkippedDocument(NOT_TRAIN),
        SkippedDocument(NOT_TRAIN),
        TextDocument("train", "4"),
    ]


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt.gz", "\n\nOne.\nTwo.\n \t\nThree.\n\n\n\nFour.")
    assert texts(file) == ["One.\nTwo.", "Three.", "Four."]
    (tmp_path / "b.txt").write_bytes(b"One.\n\nTwo.\nbro\xffken\n\nThree.\n")
    first, second, third = read(tmp_path / "b.txt")
    assert (first, third) == (TextDocument("One."), TextDocument("Three."))
    assert isinstance(second, Unusable) and (second.line, second.reason) == (4, "not valid UTF-8")


# Files


def test_a_folder_gives_its_files_by_name_and_passes_by_the_others(tmp_path: Path) -> None:
    for name in ("b.txt", "a/x.txt.gz", "c.jsonl"):
        written(tmp_path / name, '{"text": "json"}' if name.endswith("jsonl") else name)
    for name in ("x.md5", ".hidden.txt", "README"):
        written(tmp_path / name, "not to be read")
    assert texts(tmp_path) == ["a/x.txt.gz", "b.txt", "json"]
    assert texts(tmp_path, format="blocks") == ["a/x.txt.gz", "b.txt"]


def test_a_folder_without_documents_and_a_name_that_shows_no_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no file to read"):
        read(tmp_path)
    with pytest.raises(RequestError, match="there is no file or folder"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match=r"notes\.dat to be read.*give its `format`"):
        read(written(tmp_path / "notes.dat", "x"))
    assert texts(tmp_path / "notes.dat", format="blocks") == ["x"]


@pytest.mark.parametrize(("name", "format"), [("a.jsonl.gz", "jsonl"), ("a.txt.gz", "blocks"), ("a.xml.gz", "xml")])
def test_a_truncated_gz_is_reported(tmp_path: Path, name: str, format: str) -> None:  # noqa: A002
    content = {
        "jsonl": "".join(json.dumps({"text": f"number {n * n}"}) + "\n" for n in range(5000)),
        "blocks": "".join(f"number {n * n}\n\n" for n in range(5000)),
        "xml": medline(*(citation(n, f"Title {n * n}.") for n in range(5000))),
    }[format]
    file = written(tmp_path / name, content)
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(RequestError, match=rf"{file} is cut off or damaged"):
        read(file)


# MEDLINE


DOCTYPE = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMed//EN" "https://nowhere.invalid/pubmed.dtd">\n'


def citation(number: int, title: str, abstract: str = "", others: str = "") -> str:
    return (
        f'<PubmedArticle><MedlineCitation><PMID Version="1">{number}</PMID>'
        f"<Article><ArticleTitle>{title}</ArticleTitle>"
        f"<Abstract>{abstract}<CopyrightInformation>Copyright.</CopyrightInformation></Abstract></Article>{others}"
        f"</MedlineCitation><PubmedData><ArticleIdList><ArticleId>x</ArticleId></ArticleIdList></PubmedData>"
        f"</PubmedArticle>"
    )


def medline(*citations: str) -> str:
    return f"{DOCTYPE}<PubmedArticleSet>\n{''.join(citations)}\n</PubmedArticleSet>"


def test_title_and_abstract_of_medline(tmp_path: Path) -> None:
    plain = citation(5, "A title.", "<AbstractText>Of one\n   piece.</AbstractText>")
    marked = citation(
        6,
        "On <i>E. coli</i> &amp; CO<sub>2</sub> at 5 &#176;C.",
        '<AbstractText Label="AIM">To <b>see <i>more</i></b>, p &lt; 0.05.</AbstractText>'
        '<AbstractText Label="UNLABELLED">It was seen.</AbstractText>',
    )
    assert read(written(tmp_path / "a.xml.gz", medline(plain, marked))) == [
        TextDocument("A title.\n\nOf one piece.", "5"),
        TextDocument("On E. coli & CO2 at 5 °C.\n\nAIM: To see more, p < 0.05.\n\nIt was seen.", "6"),
    ]


def test_what_is_no_prose_of_the_abstract_is_not_read(tmp_path: Path) -> None:
    foreign = '<OtherAbstract Language="fre"><AbstractText>Autre.</AbstractText></OtherAbstract>'
    cut = "<AbstractText>It ends. (ABSTRACT TRUNCATED AT 250 WORDS)</AbstractText>"
    file = written(
        tmp_path / "a.xml",
        medline(
            citation(1, "[A translated title].", cut, foreign),
            citation(2, "[Not Available].", "<AbstractText>Body.</AbstractText>"),
            citation(3, ""),
            citation(4, "[3H]ouabain binds [here]."),
            "<DeleteCitation><PMID>9</PMID></DeleteCitation>",
        ),
    )
    assert read(file) == [
        TextDocument("A translated title.\n\nIt ends.", "1"),
        TextDocument("Body.", "2"),
        SkippedDocument(NO_TEXT),
        TextDocument("[3H]ouabain binds [here].", "4"),
    ]


def test_broken_medline_is_reported_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path / "a.xml", medline(citation(1, "Good."), "\n<PubmedArticle><PMID></b>", citation(2, "x")))
    source = DocumentSource(path=str(file))
    documents = read_documents(source, file)
    assert next(documents) == TextDocument("Good.", "1")
    with pytest.raises(RequestError, match=rf"{file}, line 5: broken XML \(mismatched tag\)"):
        next(documents)


def test_medline_of_any_length_is_read_in_the_memory_of_one_document(tmp_path: Path) -> None:
    abstract = f"<AbstractText>{'A sentence of some length. ' * 40}</AbstractText>"
    file = written(tmp_path / "a.xml.gz", medline(*(citation(n, "A title.", abstract) for n in range(2000))))
    source = DocumentSource(path=str(file))
    count = sum(1 for _ in read_documents(source, file))  # whatever is made once is made here
    tracemalloc.start()
    assert sum(1 for _ in read_documents(source, file)) == count == 2000
    assert tracemalloc.get_traced_memory()[1] < 1e6  # the text alone is 2 MB
    tracemalloc.stop()


# JATS


BODY = """
<sec><title>Results</title>
  <p>Cells grew<sup><xref ref-type="bibr">1</xref>,<xref ref-type="bibr">2</xref></sup> well
     [<xref ref-type="bibr">3</xref>–<xref ref-type="bibr">5</xref>] (<xref ref-type="fig">Fig. 1</xref>).</p>
  <fig><caption><p>Not prose.</p></caption></fig>
  <sec><p>As <xref ref-type="bibr">Osei et al. (2011)</xref> say, Ca<sup>2+</sup> &alpha;&nbsp;rose:
     <list><list-item><p>once;</p></list-item><list-item><p>twice.</p></list-item></list> And fell.
     <disp-formula><tex-math>x^2</tex-math></disp-formula></p></sec>
  <table-wrap><table><tr><td>Cell</td></tr></table></table-wrap>
</sec>
"""
PROSE = "Cells grew well (Fig. 1).\n\nAs Osei et al. (2011) say, Ca2+ α rose:\n\nonce;\n\ntwice.\n\nAnd fell."


def article(body: str, number: str = "77", space: str = "") -> str:
    return (
        f'<article{space}><front><article-meta><article-id pub-id-type="doi">10.1/x</article-id>'
        f'<article-id pub-id-type="pmcid">PMC{number}</article-id></article-meta></front>'
        f"<body>{body}</body><back><ref-list><ref>Reference.</ref></ref-list></back></article>"
    )


JATS_TYPE = '<!DOCTYPE article PUBLIC "-//NLM//DTD JATS//EN" "JATS-archivearticle1.dtd">\n'


@pytest.mark.parametrize("space", ["", ' xmlns="https://jats.nlm.nih.gov/ns/archiving/1.4/"'])
def test_paragraphs_of_the_body_of_an_article_come_in_order(tmp_path: Path, space: str) -> None:
    file = written(tmp_path / "a.nxml", JATS_TYPE + article(BODY, space=space))
    assert read(file) == [TextDocument(PROSE, "PMC77")]


def test_articles_come_from_collections_folders_and_tars_alike(tmp_path: Path) -> None:
    one, two = article("<p>One.</p>", "1"), article("<p>Two.</p>", "2")
    written(tmp_path / "set" / "a.xml", f"<pmc-articleset>{one}{two}</pmc-articleset>")
    written(tmp_path / "folder" / "1.nxml", one)
    written(tmp_path / "folder" / "2.xml.gz", two)
    (tmp_path / "tar").mkdir()
    with tarfile.open(tmp_path / "tar" / "a.tar.gz", "w:gz") as archive:
        for name, content in (("PMC1/1.nxml", one), ("PMC1/figure.jpg", "no"), ("PMC2/2.xml", two)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    expected = [TextDocument("One.", "PMC1"), TextDocument("Two.", "PMC2")]
    assert read(tmp_path / "set") == read(tmp_path / "folder") == read(tmp_path / "tar") == expected


def test_a_broken_article_is_unusable_and_one_without_a_body_left_out(tmp_path: Path) -> None:
    written(tmp_path / "1.xml", "<article><front/>\n<body><p>Cut")
    written(tmp_path / "2.xml", "<article><front/></article>")
    written(tmp_path / "3.xml", article("<p>Good.</p>", "3"))
    broken, without, good = read(tmp_path)
    assert isinstance(broken, Unusable)
    assert (broken.file, broken.line, broken.reason) == (str(tmp_path / "1.xml"), 2, "broken XML")
    assert (without, good) == (SkippedDocument(NO_TEXT), TextDocument("Good.", "PMC3"))


def test_a_cut_off_tar_and_other_xml_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("1.nxml")
        member.size = 20_000
        archive.addfile(member, io.BytesIO(article("<p>x</p>").encode().ljust(20_000)))
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:9_000])
    with pytest.raises(RequestError, match=r"a\.tar is cut off or damaged"):
        read(tmp_path / "a.tar")
    with pytest.raises(RequestError, match=r"a\.xml: expected XML of MEDLINE.*found 'html'"):
        read(written(tmp_path / "a.xml", "<html><body>x</body></html>"))


# Entities


def test_an_entity_reads_no_file_asks_no_host_and_cannot_multiply(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("SECRET")
    for target in ((tmp_path / "secret.txt").as_uri(), "http://127.0.0.1:9/x"):
        entity = f'<!DOCTYPE article [<!ENTITY x SYSTEM "{target}">]>'
        (found,) = read(written(tmp_path / "a.xml", entity + article("<p>A &x; b.</p>")))
        assert isinstance(found, Unusable) and found.reason == "broken XML"
    laughs = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    file = written(tmp_path / "a.xml", f"<!DOCTYPE article [{laughs}]>" + article("<p>&a9;</p>"))
    (found,) = read(file)
    assert isinstance(found, Unusable) and "amplification" in found.detail  # it would be a text of 2 GB
