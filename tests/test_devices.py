"""Whatever loads a model puts it on the accelerator of the machine, computes there, and gives back what a CPU gives."""

import sys
from pathlib import Path

import numpy as np
import torch
from forked import CONTEXT, finish

from bertrelay import SentenceEncoder, encode_file
from bertrelay.device import default_device
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import save_model as save_tags
from domain.biomedical.ner.model import start_model as start_tags
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa.model import save_model as save_answers
from domain.biomedical.qa.model import start_model as start_answers
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.biomedical.qa.settings import QaSettings
from domain.clinical.model import save_model as save_outcome
from domain.clinical.model import start_model as start_outcome
from domain.clinical.predict import OutcomeScorer
from domain.clinical.settings import ModelDescription
from domain.terms import term_vectors
from students import shrink
from teachers.pairs.model import start_cross_encoder
from teachers.pairs.rerank import load_scorer
from teachers.sbert_paper.poly_encoder import PolyEncoder


def compare_devices(folder):
    """In a process of its own, as the accelerator stays."""
    sys.path.append(str(Path(__file__).parent / "bertrelay"))
    import simulated_device

    base, texts = folder / "base", ["A dog runs.", "Rain.", "The cat sleeps on the mat and the dog does not."]
    pairs = [(texts[0], texts[1]), (texts[2], texts[0]), (texts[1], texts[1])]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n")
    start_cross_encoder(base).save(folder / "cross")
    PolyEncoder(SentenceEncoder.load(base, "cpu"), codes=3).save(folder / "poly")
    given = {"base": str(base), "train": [{"path": "none"}]}
    tagging = NerSettings.model_validate({**given, "decoder": "crf"})
    save_tags(start_tags(tagging, LabelSet.of_types(["Disease"])), folder / "tags")
    answering = QaSettings.model_validate({**given, "max_tokens": 24, "overlap": 20})
    save_answers(start_answers(answering), folder / "answers")
    how = ModelDescription.model_validate({"chunking": {"max_tokens": 8}, "threshold": 0.4})
    save_outcome(start_outcome(base, how), folder / "outcome")

    def vectors(device):
        return SentenceEncoder.load(base, device).encode(texts, precision="fp32")

    def file(device):
        encoder, options = SentenceEncoder.load(base, device), {"precision": "fp32", "overwrite": True}
        encode_file(encoder, folder / "lines.txt", folder / "out.npy", **options)
        return np.load(folder / "out.npy")

    def fewer_dimensions(device):
        smaller = shrink(SentenceEncoder.load(base, device), texts, dimensions=3, precision="fp32").encoder
        return np.abs(smaller.encode(texts, precision="fp32"))

    def terms(device):
        return term_vectors(SentenceEncoder.load(base, device), ["dog", "the cat"], precision="fp32")

    def scores(name):
        return lambda device: load_scorer(folder / name, device=device).predict(pairs, precision="fp32")

    def tags(device):
        documents = EntityTagger.load(folder / "tags", device)(texts, precision="fp32")
        return [[entity.start, entity.end, entity.confidence] for each in documents for entity in each.entities]

    def answers(device):
        reply = QuestionAnswerer.load(folder / "answers", device)("Who runs?", texts[2], precision="fp32")
        return [candidate.probability for candidate in reply.nbest]

    def outcome(device):
        scorer = OutcomeScorer.load(folder / "outcome", device)
        explained = scorer.explain(texts[2], precision="fp32")
        return [
            *(each.probability for each in scorer.score_texts(texts, precision="fp32")),
            explained.score.probability,
        ]

    calls = [vectors, file, fewer_dimensions, terms, tags, answers, outcome, *map(scores, ("cross", "poly"))]
    expected = [call("cpu") for call in calls]
    assert default_device() == torch.device("cpu")
    accelerator = simulated_device.install()
    encoder = SentenceEncoder.load(base)
    assert encoder.device == accelerator
    assert default_device().type == simulated_device.NAME
    try:  # it is no CPU in disguise
        encoder(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    except RuntimeError as error:
        assert "expected all tensors on simulated" in str(error)
    else:
        raise AssertionError("tensors of two devices do not mix")
    for call, wanted in zip(calls, expected, strict=True):
        before = len(simulated_device.OPERATIONS)
        found = call(None)
        assert len(simulated_device.OPERATIONS) > before + 50, f"{call} did not compute on the accelerator"
        np.testing.assert_allclose(np.asarray(found, float), np.asarray(wanted, float), atol=2e-4, err_msg=str(call))
        before = len(simulated_device.OPERATIONS)
        call("cpu")
        assert len(simulated_device.OPERATIONS) == before, f"{call} did not compute on the CPU"


def test_what_loads_a_model_computes_on_the_accelerator_and_brings_back_what_a_cpu_gives(tiny_encoder, tmp_path):
    tiny_encoder("bert", ["A dog runs.", "Rain.", "The cat sleeps on the mat."]).save(tmp_path / "base")
    process = CONTEXT.Process(target=compare_devices, args=(tmp_path,))
    process.start()
    assert finish([process]) == [0]
