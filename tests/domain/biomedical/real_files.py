"""Folders of published data sets, which are no part of the project; without them their tests are skipped."""

from pathlib import Path

import pytest

NER = Path(__file__).resolve().parents[4] / "shared/data/ner"
RELATIONS = NER.parent / "relations"
COVID = NER.parent / "qa/covidqa-200423.json.gz"

with_ner = pytest.mark.skipif(not NER.is_dir(), reason=f"there are no annotated abstracts in {NER}")
with_relations = pytest.mark.skipif(not RELATIONS.is_dir(), reason=f"there are no relations in {RELATIONS}")
with_covid = pytest.mark.skipif(not COVID.exists(), reason=f"there is no COVID-QA in {COVID}")
