"""XML of PubMed and PubMed Central; PubMed's revisions against a plain replay of its files."""

import random
import tracemalloc

import pytest
from document_files import article, citation, faults, medline, packed, read, texts, written

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.pretraining import pubmed
from domain.pretraining.documents import read_all
from domain.pretraining.pubmed import DELETED, REVISED, outdated
from domain.pretraining.settings import DocumentSource
from domain.reading import NO_TEXT, TextDocument


def deletion(*numbers):
    named = "".join(f'<PMID Version="1">{number}</PMID>' for number in numbers)
    return f"<DeleteCitation>{named}</DeleteCitation>"


def test_title_and_abstract_of_medline_and_nothing_else_are_read(tmp_path):
    sections = (
        '<AbstractText Label="AIM">To <b>see <i>more</i></b>, p &lt; 0.05.</AbstractText>'
        '<AbstractText Label="UNLABELLED">It was\n   seen.</AbstractText>'
    )
    foreign = '<OtherAbstract Language="fre"><AbstractText>Autre.</AbstractText></OtherAbstract>'
    cut = "<AbstractText>It ends. (ABSTRACT TRUNCATED AT 250 WORDS)</AbstractText>"
    citations = [
        citation(1, "On <i>E. coli</i> &amp; CO<sub>2</sub> at 5 &#176;C.", sections),
        citation(2, "[A translated title].", cut, foreign),
        citation(3, "[Not Available].", "<AbstractText>Body.</AbstractText>"),
        citation(4, ""),
        citation(5, "[3H]ouabain binds [here]."),
    ]
    assert read(written(tmp_path / "a.xml.gz", medline(*citations, deletion(9)))) == [
        TextDocument("On E. coli & CO2 at 5 °C.\n\nAIM: To see more, p < 0.05.\n\nIt was seen.", "1"),
        TextDocument("A translated title.\n\nIt ends.", "2"),
        TextDocument("Body.", "3"),
        Rejected(NO_TEXT, is_fault=False),
        TextDocument("[3H]ouabain binds [here].", "5"),
    ]


def test_broken_medline_is_reported_with_its_line(tmp_path):
    file = written(tmp_path / "a.xml", medline(citation(1, "Good."), "\n<PubmedArticle><PMID></b>", citation(2, "x")))
    with pytest.raises(RequestError, match=rf"{file}, line 5: broken XML \(mismatched tag\)"):
        read(file)


def test_medline_of_any_length_is_read_in_the_memory_of_one_document(tmp_path):
    abstract = f"<AbstractText>{'A sentence of some length. ' * 200}</AbstractText>"
    file = written(tmp_path / "a.xml.gz", medline(*(citation(n, "A title.", abstract) for n in range(100))))
    assert len(read(file)) == 100  # whatever is made once is made here
    files = [(DocumentSource(path=str(file)), file)]
    tracemalloc.start()
    assert sum(1 for _ in read_all(files, outdated(files))) == 100
    assert tracemalloc.get_traced_memory()[1] < 3e5  # the text alone is 0.5 MB
    tracemalloc.stop()


def test_the_newest_record_of_a_citation_is_kept_and_the_others_are_counted(tmp_path):
    baseline = [citation(1, "One."), citation(2, "Two."), citation(3, "Three.")]
    written(tmp_path / "baseline/pubmed26n0001.xml", medline(*baseline))
    written(tmp_path / "updates/pubmed26n0002.xml", medline(citation(2, "Two, revised."), deletion(3)))
    written(tmp_path / "updates/pubmed26n0003.xml", medline(citation(4, "Four.", version=2), citation(4, "First.")))
    revised, deleted = Rejected(REVISED, is_fault=False), Rejected(DELETED, is_fault=False)
    one, two, four = TextDocument("One.", "1"), TextDocument("Two, revised.", "2"), TextDocument("Four.", "4")
    assert read(tmp_path) == [one, revised, deleted, two, four, revised]


def test_names_of_pubmed_say_which_file_is_newer_whatever_the_order(tmp_path):
    old = written(tmp_path / "pubmed25n1300.xml", medline(citation(1, "Of last year.")))
    new = written(tmp_path / "pubmed26n0001.xml", medline(citation(1, "Of this year.")))
    assert read(new, old) == [TextDocument("Of this year.", "1"), Rejected(REVISED, is_fault=False)]
    first, second = (old.rename(tmp_path / "b.xml"), new.rename(tmp_path / "a.xml"))
    assert read(first, second) == [Rejected(REVISED, is_fault=False), TextDocument("Of this year.", "1")]


@pytest.mark.parametrize("seed", range(5))
def test_any_history_ends_as_if_it_were_replayed(tmp_path, seed):
    draw, alive = random.Random(seed), dict[tuple[int, int], str]()
    for file in range(6):
        elements = []
        for position in range(10):
            number, version, title = draw.randint(1, 8), draw.choice([1, 1, 1, 2, 3]), f"{file} {position}."
            elements.append(citation(number, title, version=version))
            alive[number, version] = title
        gone = draw.sample(range(1, 9), 2)
        for number in gone:
            alive.pop((number, 1), None)
        written(tmp_path / f"pubmed26n{file:04}.xml", medline(*elements, deletion(*gone)))
    newest = {number: alive[number, version] for number, version in sorted(alive)}
    items = read(tmp_path)
    assert {int(item.id): item.text for item in items if isinstance(item, TextDocument)} == newest
    assert sum(isinstance(item, Rejected) for item in items) == 60 - len(newest)


def test_articles_and_records_without_a_number_are_no_revisions(tmp_path):
    written(tmp_path / "a.nxml", "<article><body><p>Text.</p></body></article>")
    written(tmp_path / "b.nxml", "<article><body><p>More.</p></body></article>")
    written(tmp_path / "c.xml", medline(citation("", "One."), citation("", "Two.")))
    assert texts(tmp_path) == ["Text.", "More.", "One.", "Two."]


# JATS

BODY = """
<sec><title>Results</title>
  <p>Cells grew<sup><xref ref-type="bibr">1</xref>,<xref ref-type="bibr">2</xref></sup> well
     [<xref ref-type="bibr">3</xref>–<xref ref-type="bibr">5</xref>] (<xref ref-type="fig">Fig. 1</xref>)
     (refs <xref ref-type="bibr">3</xref>, <xref ref-type="bibr">4</xref>) by a<break/>(reference) value.</p>
  <fig><caption><p>Not prose.</p></caption></fig>
  <sec><p>As <xref ref-type="bibr">Osei et al. (2011)</xref> say, Ca<sup>2+</sup> &alpha;&nbsp;rose:
     <list><list-item><p>once;</p></list-item><list-item><p>twice.</p></list-item></list> And fell.
     <disp-formula><tex-math>x^2</tex-math></disp-formula></p></sec>
  <table-wrap><table><tr><td>Cell</td></tr></table></table-wrap>
</sec>
"""
PROSE = "Cells grew well (Fig. 1) by a (reference) value.\n\n"
PROSE += "As Osei et al. (2011) say, Ca2+ α rose:\n\nonce;\n\ntwice.\n\nAnd fell."
JATS_TYPE = '<!DOCTYPE article PUBLIC "-//NLM//DTD JATS//EN" "JATS-archivearticle1.dtd">\n'


@pytest.mark.parametrize("space", ["", ' xmlns="https://jats.nlm.nih.gov/ns/archiving/1.4/"'])
def test_paragraphs_of_the_body_of_an_article_come_in_order(tmp_path, space):
    file = written(tmp_path / "a.nxml", JATS_TYPE + article(BODY, space=space))
    assert read(file) == [TextDocument(PROSE, "PMC77")]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("10<sup>6</sup> cells", "10^6 cells"),
        ("1.5 x 10<sup>−3</sup>/ml", "1.5 x 10^−3/ml"),
        ("10<sup><italic>6</italic></sup>5", "10^6 5"),
        ("SO<sub>4</sub><sup>2−</sup> in H<sub>2</sub>O", "SO4^2− in H2O"),
        ("log<sub>10</sub>2, Ca<sup>2+</sup>, CD4<sup>+</sup>", "log10 2, Ca2+, CD4+"),
        ("the 2<sup>nd</sup> m<sup>2</sup> of <sup>14</sup>C, 7<sub>16</sub>", "the 2nd m2 of 14C, 7_16"),
        (
            '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mn>10</mn><mrow><mo>-</mo><mn>6</mn></mrow></msup>'
            "<mfrac><mn>1</mn><mn>2</mn></mfrac></math>",
            "10^-6 1/2",
        ),
    ],
)
def test_raised_and_lowered_digits_do_not_join_the_digits_before_them(tmp_path, markup, text):
    assert texts(written(tmp_path / "a.nxml", article(f"<p>{markup}</p>"))) == [text]
    assert texts(written(tmp_path / "b.xml", medline(citation("1", markup)))) == [text]


def test_articles_come_from_collections_folders_and_tars_alike(tmp_path):
    one, two = article("<p>One.</p>", "1"), article("<p>Two.</p>", "2")
    written(tmp_path / "set/a.xml", f"<pmc-articleset>{one}{two}</pmc-articleset>")
    written(tmp_path / "folder/1.nxml", one)
    written(tmp_path / "folder/2.xml.gz", two)
    others = {"PMC1/figure.jpg": "no", "PMC1/._1.nxml": "no"}
    packed(tmp_path / "tar/A.TAR.GZ", {"PMC1/1.nxml": one, **others, "PMC2/2.XML": two})
    expected = [TextDocument("One.", "PMC1"), TextDocument("Two.", "PMC2")]
    assert [read(tmp_path / name) for name in ("set", "folder", "tar")] == [expected] * 3


def test_a_broken_article_is_unusable_and_one_without_a_body_left_out(tmp_path):
    written(tmp_path / "1.xml", "<article><front/>\n<body><p>Cut")
    written(tmp_path / "2.xml", "<article><front/></article>")
    written(tmp_path / "3.xml", article("<p>Good.</p>", "3"))
    assert read(tmp_path)[1:] == [Rejected(NO_TEXT, is_fault=False), TextDocument("Good.", "PMC3")]
    assert faults(tmp_path) == [(2, "broken XML")]
    for name in ("gb2312", "bogus"):
        declared = f'<?xml version="1.0" encoding="{name}"?>' + article("<p>x</p>")
        assert faults(written(tmp_path / "a.xml", declared)) == [(1, "broken XML")]
    mixed = packed(tmp_path / "a.tar", {"1.xml": "<manifest/>", "2.xml": article("<p>Good.</p>")})
    assert texts(mixed) == ["Good."] and faults(mixed) == [(1, "neither MEDLINE/PubMed nor JATS")]


def test_an_entity_reads_no_file_asks_no_host_and_cannot_multiply(tmp_path):
    secret = written(tmp_path / "secret.txt", "SECRET")
    for target in (secret.as_uri(), "http://127.0.0.1:9/x"):
        entity = f'<!DOCTYPE article [<!ENTITY x SYSTEM "{target}">]>'
        assert faults(written(tmp_path / "a.xml", entity + article("<p>A &x; b.</p>"))) == [(1, "broken XML")]
    laughs = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    (document,) = read(written(tmp_path / "a.xml", f"<!DOCTYPE article [{laughs}]>" + article("<p>&a9;</p>")))
    assert isinstance(document, Rejected) and "amplification" in document.detail  # it would be a text of 2 GB


def test_an_article_without_an_end_is_not_held_whole_and_a_long_collection_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pubmed, "LONGEST_LINE", 1 << 18)
    many = medline(*(citation(number, f"Title {number}.", "Pain. " * 5_000) for number in range(1, 20)))
    assert len(texts(written(tmp_path / "a.xml", many))) == 19
    endless = medline(citation(1, "A title.", "Pain. " * 100_000))
    with pytest.raises(RequestError, match=r"b\.xml: expected documents of at most 0 MiB"):
        texts(written(tmp_path / "b.xml", endless))
