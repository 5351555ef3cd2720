import gzip
import json
import re

import pytest

from bertrelay.stage import StageContext
from pipelines.recipe import built_in_names, read_recipe
from pipelines.registry import REGISTRY
from pipelines.samples.papers import run_papers, write_papers
from pipelines.samples.settings import PaperSettings


def papers(folder):
    with gzip.open(folder / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_paper_has_an_id_and_a_text_of_its_own(tmp_path):
    write_papers(tmp_path, documents=300)
    found = papers(tmp_path)
    assert len({paper["id"] for paper in found}) == len({paper["text"] for paper in found}) == 300
    assert not any(re.search(r"[{}]", paper["text"]) for paper in found)


def test_a_paper_keeps_to_its_drug_and_its_gene(tmp_path):
    write_papers(tmp_path, documents=300)
    genes = [set(re.findall(r"\b[A-Z]{3}\d+\b", paper["text"])) for paper in papers(tmp_path)]
    assert max(map(len, genes)) == 1
    assert sum(map(len, genes)) > 250
    assert len(set().union(*genes)) > 200


def test_the_stage_counts_what_it_wrote(tmp_path):
    assert run_papers(PaperSettings(documents=12), StageContext(tmp_path, tmp_path)) == {"documents/papers": 12.0}
    assert len(papers(tmp_path)) == 12


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_recipe_is_without_mistakes(name):
    assert read_recipe(name, REGISTRY).steps
