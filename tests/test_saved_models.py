"""Models of every kind, as they are saved."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from domain.biomedical.ner import model as entities
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa import model as answers
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.biomedical.qa.settings import QaSettings
from domain.clinical import model as outcome_model
from domain.clinical.settings import ModelDescription
from teachers.pairs.model import CrossEncoder, start_cross_encoder
from teachers.sbert_paper.bilstm import BiLstmEncoder
from teachers.sbert_paper.poly_encoder import PolyEncoder

TEXTS = ["The heart beats.", "Lungs breathe air."]
OUTCOME = ModelDescription.model_validate({"chunking": {"max_tokens": 24}})


def save_entities(base, folder):
    settings = NerSettings.model_validate({"base": str(base), "train": [{"path": "none"}], "decoder": "crf"})
    entities.save_model(entities.start_model(settings, LabelSet.of_types(["Disease"], "IOB2")), folder)


def save_answers(base, folder):
    settings = QaSettings.model_validate({"base": str(base), "train": [{"path": "none"}]})
    answers.save_model(answers.start_model(settings), folder)


SAVE: dict[str, Callable[[SentenceEncoder, Path, Path], object]] = {
    "encoder": lambda encoder, _, folder: encoder.save(folder),
    "poly-encoder": lambda _, base, folder: PolyEncoder(SentenceEncoder.load(base), 2).save(folder),
    "cross-encoder": lambda _, base, folder: start_cross_encoder(base).save(folder),
    "bilstm": lambda _, __, folder: BiLstmEncoder(["heart"], 4, 4).save(folder),
    "entities": lambda _, base, folder: save_entities(base, folder),
    "answers": lambda _, base, folder: save_answers(base, folder),
    "outcomes": lambda _, base, folder: outcome_model.save_model(outcome_model.start_model(base, OUTCOME), folder),
}


LOAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "encoder": ("a sentence encoder", SentenceEncoder.load),
    "cross-encoder": ("a network that scores pairs", CrossEncoder.load),
    "entities": ("a tagger of entities", EntityTagger.load),
    "answers": ("a model that answers questions", QuestionAnswerer.load),
}


def test_a_folder_of_another_kind_is_refused_by_every_loader_with_what_it_is(tiny_encoder, tmp_path):
    """A training may start from any kind."""
    plain = tiny_encoder("bert", TEXTS)
    plain.save(tmp_path / "base")
    words = {"poly-encoder": "pairs of sentences", "outcomes": "a model that predicts outcomes"}
    words |= {kind: what for kind, (what, _) in LOAD.items()}
    for kind, found in words.items():
        folder = tmp_path / kind
        SAVE[kind](plain, tmp_path / "base", folder)
        for name, (what, load) in LOAD.items():
            if name == kind:
                load(folder)
                continue
            wanted = f"model: expected {what}.*found in .*{found}"
            if kind == "encoder" or (kind, name) == ("poly-encoder", "cross-encoder"):
                wanted = "model: expected one that .*, found none in .*; train it with"
            with pytest.raises(RequestError, match=wanted):
                load(folder)
        assert SentenceEncoder.load(folder, is_base=True).dim == 16


@pytest.fixture
def set_umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("kind", SAVE)
def test_all_parts_of_a_model_have_the_permissions_that_the_umask_gives(tiny_encoder, set_umask, tmp_path, kind):
    plain = tiny_encoder("bert", TEXTS)
    plain.save(tmp_path / "base")
    encoder = tiny_encoder("bert", TEXTS, projection=Projection(16, 3))
    for umask in (0o022, 0o027, 0o077):
        set_umask(umask)
        SAVE[kind](encoder, tmp_path / "base", tmp_path / f"{umask:o}")
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in (tmp_path / f"{umask:o}").rglob("*.*") if path.is_file()
        }
        assert any(name.endswith(".safetensors") for name in modes)
        assert set(modes.values()) == {0o666 & ~umask}, modes
