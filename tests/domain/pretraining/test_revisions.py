"""Revised and deleted records of PubMed beside a plain replay of the files, one after the other."""

import random
from pathlib import Path

import pytest

from domain.pretraining.readers import DELETED, REVISED, Item, SkippedDocument, TextDocument, files_of, read_all
from domain.pretraining.settings import DocumentSource


def record(number: int, title: str, version: int = 1) -> str:
    return (
        f'<PubmedArticle><MedlineCitation><PMID Version="{version}">{number}</PMID>'
        f"<Article><ArticleTitle>{title}</ArticleTitle></Article></MedlineCitation></PubmedArticle>"
    )


def deletion(*numbers: int) -> str:
    named = "".join(f'<PMID Version="1">{number}</PMID>' for number in numbers)
    return f"<DeleteCitation>{named}</DeleteCitation>"


def written(file: Path, *elements: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"<PubmedArticleSet>{''.join(elements)}</PubmedArticleSet>")
    return file


def read(*paths: Path) -> list[Item]:
    sources = [DocumentSource(path=str(path)) for path in paths]
    return [item for _, _, item in read_all([(source, file) for source in sources for file in files_of(source)])]


def test_the_newest_record_of_a_citation_is_kept_and_the_others_are_counted(tmp_path: Path) -> None:
    written(tmp_path / "baseline/pubmed26n0001.xml", record(1, "One."), record(2, "Two."), record(3, "Three."))
    written(tmp_path / "updatefiles/pubmed26n0002.xml", record(2, "Two, revised."), deletion(3))
    written(tmp_path / "updatefiles/pubmed26n0003.xml", record(4, "Four.", 2), record(4, "Four, first."))
    revised, deleted = SkippedDocument(REVISED), SkippedDocument(DELETED)
    assert read(tmp_path) == [
        TextDocument("One.", "1"),
        revised,
        deleted,
        TextDocument("Two, revised.", "2"),
        TextDocument("Four.", "4"),
        revised,
    ]


def test_names_of_pubmed_say_which_file_is_newer_whatever_the_order(tmp_path: Path) -> None:
    old = written(tmp_path / "pubmed25n1300.xml", record(1, "Of last year."))
    new = written(tmp_path / "pubmed26n0001.xml", record(1, "Of this year."))
    assert read(new, old) == [TextDocument("Of this year.", "1"), SkippedDocument(REVISED)]
    first, second = (old.rename(tmp_path / "b.xml"), new.rename(tmp_path / "a.xml"))
    assert read(first, second) == [SkippedDocument(REVISED), TextDocument("Of this year.", "1")]


@pytest.mark.parametrize("seed", range(5))
def test_any_history_ends_as_if_it_were_replayed(tmp_path: Path, seed: int) -> None:
    draw, alive = random.Random(seed), dict[tuple[int, int], str]()
    for file in range(6):
        elements = []
        for place in range(10):
            number, version, title = draw.randint(1, 8), draw.choice([1, 1, 1, 2, 3]), f"{file} {place}."
            elements.append(record(number, title, version))
            alive[number, version] = title
        gone = draw.sample(range(1, 9), 2)
        elements.append(deletion(*gone))
        for number in gone:
            alive.pop((number, 1), None)
        written(tmp_path / f"pubmed26n{file:04}.xml", *elements)
    newest = {number: alive[number, version] for number, version in sorted(alive)}
    items = read(tmp_path)
    assert {int(item.id): item.text for item in items if isinstance(item, TextDocument)} == newest
    assert sum(isinstance(item, SkippedDocument) for item in items) == 60 - len(newest)


def test_articles_and_records_without_a_number_stay(tmp_path: Path) -> None:
    article = "<article><body><p>Text.</p></body></article>"
    (tmp_path / "a.nxml").write_text(article)
    (tmp_path / "b.nxml").write_text(article)
    odd = written(tmp_path / "c.xml", record(1, "One.").replace(">1<", "><"), record(1, "Two.").replace(">1<", "><"))
    assert sum(isinstance(item, TextDocument) for item in read(tmp_path / "a.nxml", tmp_path / "b.nxml", odd)) == 4
