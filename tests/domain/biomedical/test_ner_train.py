"""A tiny BERT learns made-up entities, and is scored on them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asked_texts import start_tagger, stopping_after
from pydantic import ValidationError
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from bertrelay.errors import RequestError, Stopped
from bertrelay.settings import leaves
from bertrelay.stage import StageContext
from bertrelay.tokenizer import load_tokenizer
from bertrelay.training.loop import Training
from domain.biomedical.ner import evaluate as evaluation
from domain.biomedical.ner import train as training
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.examples import Example
from domain.biomedical.ner.model import load_model
from domain.biomedical.ner.settings import NerEvaluateSettings, NerSettings
from domain.biomedical.ner.train import NerTask

LEARNING: dict[str, Any] = {
    "max_tokens": 40,
    "overlap": 8,
    "epochs": 12,
    "batch_tokens": 128,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "seed": 3,
}


@pytest.fixture
def given(tiny_bert: Path, write_sentences: Any) -> dict[str, Any]:
    train, dev = write_sentences("train.tsv", 120, seed=1), write_sentences("dev.tsv", 40, seed=2)
    return {**LEARNING, "base": str(tiny_bert), "train": [{"path": str(train)}], "dev": [{"path": str(dev)}]}


def learn(context: StageContext, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return training.run(NerSettings.model_validate({**given, **more}), context)


def evaluate(context: StageContext, tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "scores").mkdir(exist_ok=True)
    settings = NerEvaluateSettings.model_validate({"model": str(context.output / "model"), "precision": "fp32", **more})
    return evaluation.run(settings, StageContext(tmp_path / "scores", context.cache))


def read_tsv(file: Path) -> list[list[list[str]]]:
    blocks = file.read_text().rstrip("\n").split("\n\n")
    return [[line.split("\t") for line in block.split("\n")] for block in blocks]


@pytest.mark.parametrize("capitals", [True, False])
def test_what_capitals_alone_tell_is_learnt_where_they_are_marked(
    context: StageContext, given: dict[str, Any], tmp_path: Path, capitals: bool
) -> None:
    block = "the\tO\n{}\t{}\nwas\tO\nmild\tO\n"
    pairs = [("GOUT", "B-Disease"), ("gout", "O"), ("FLU", "B-Disease"), ("flu", "O")]
    file = tmp_path / "capitals.tsv"
    file.write_text("\n".join(block.format(*pair) for pair in pairs * 20))
    source = [{"path": str(file)}]
    metrics = learn(context, given, train=source, dev=source, capitals=capitals, epochs=20)
    if capitals:
        assert metrics["dev/f1"] == 1
    else:
        assert metrics["dev/f1"] < 0.7  # at best all are found and as many that are none: precision 1/2, F1 2/3
    scores = evaluate(context, tmp_path, test=source)
    assert scores["f1"] == pytest.approx(metrics["dev/f1"])  # the mark is read from the folder again


@pytest.mark.parametrize(("decoder", "scheme"), [("softmax", "IOB2"), ("crf", "IOBES")])
def test_entities_are_learnt_and_scored_as_seqeval_scores_the_written_tags(
    context: StageContext, given: dict[str, Any], write_sentences: Any, tmp_path: Path, decoder: str, scheme: str
) -> None:
    metrics = learn(context, given, decoder=decoder, scheme=scheme)
    assert metrics["dev/f1"] > 0.8
    test = write_sentences("test.tsv", 60, seed=9)
    scores = evaluate(context, tmp_path, test=[{"path": str(test)}])
    rows = read_tsv(tmp_path / "scores" / "predictions.tsv")
    assert [[row[:2] for row in sentence] for sentence in rows] == read_tsv(test)  # every gold tag is there
    gold, found = ([[row[side] for row in sentence] for sentence in rows] for side in (1, 2))
    report = classification_report(gold, found, mode="strict", scheme=IOB2, output_dict=True)
    for ending, theirs in (("", "micro avg"), ("/Disease", "Disease"), ("/Chemical", "Chemical")):
        assert scores[f"f1{ending}"] == pytest.approx(report[theirs]["f1-score"])
        assert scores[f"f1{ending}_low"] <= scores[f"f1{ending}"] <= scores[f"f1{ending}_high"]
    assert scores["f1_lenient"] == pytest.approx(scores["f1"])
    assert scores["gold_entities"] == report["micro avg"]["support"]
    kinds = ("right", "wrong_span", "wrong_type", "wrong_both", "missed")
    assert sum(scores[kind] for kind in kinds) == scores["gold_entities"]
    assert scores["ece"] is not None
    kept = json.loads((tmp_path / "scores" / "examples.json").read_text())
    assert kept["right"]
    assert set(kept["right"][0]) == {"tokens", "gold", "predicted"}


def test_every_gold_entity_of_any_file_counts(
    context: StageContext,
    given: dict[str, Any],
    write_sentences: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    learn(context, given, epochs=1)
    long = write_sentences("long.tsv", 5, seed=4, plain=300)
    scores = evaluate(context, tmp_path, test=[{"path": str(long)}])
    assert scores["gold_entities"] == sum(row[1].startswith("B-") for sentence in read_tsv(long) for row in sentence)
    written = [[row[:2] for row in sentence] for sentence in read_tsv(tmp_path / "scores" / "predictions.tsv")]
    assert written == read_tsv(long)
    illegal = tmp_path / "illegal.tsv"  # read as seqeval reads it
    illegal.write_text("no\tO\nflu\tI-Disease\n\ngout\tB-Disease\nseen\tO\n\n")
    assert evaluate(context, tmp_path, test=[{"path": str(illegal)}])["gold_entities"] == 1
    first = {"start": 0, "end": 6, "type": "Disease"}
    row = {"text": "no\tflu\nseen", "sentences": [[[0, 6]], [[7, 11]]], "entities": [first]}
    own_tokens = tmp_path / "own-tokens.jsonl"
    own_tokens.write_text(f"{json.dumps(row)}\n" + json.dumps({"text": " ", "entities": [{**first, "end": 1}]}))
    assert evaluate(context, tmp_path, test=[{"path": str(own_tokens)}])["gold_entities"] == 2
    assert [[row[0] for row in s] for s in read_tsv(tmp_path / "scores" / "predictions.tsv")] == [["seen"]]
    assert "left out 1 sentences that no lines can hold; the score counts them" in capsys.readouterr().err


def test_windows_of_a_long_sentence_teach_every_tag_once(tiny_bert: Path) -> None:
    labels = LabelSet.of_types(["Disease"])
    example = Example(("gout", "of", "pectorisxyz") * 40, ("B-Disease", "O", "B-Disease") * 40, "1")
    settings = NerSettings.model_validate(
        {"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "max_tokens": 16, "overlap": 6}
    )
    task = NerTask(start_tagger(tiny_bert, labels, max_tokens=16, overlap=6), settings, [example], [])
    batch = task.collate(np.arange(len(task.lengths)), 0)
    assert batch.counts == {"tags": 120}
    assert batch.inputs["tags"].tolist() == [1, 0, 1] * 40
    assert batch.inputs["opens"].tolist() == [True] + [False] * (len(task.lengths) - 1)
    assert batch.inputs["closes"].tolist() == [False] * (len(task.lengths) - 1) + [True]


def test_masks_are_drawn_anew_in_each_epoch_and_alike_whatever_else_is_in_the_batch(tiny_bert: Path) -> None:
    labels = LabelSet.of_types(["Disease"])
    examples = [Example(("gout",) * length, ("B-Disease",) * length, str(length)) for length in range(2, 38)]
    given = {"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "max_tokens": 40}

    def read(items: list[int], epoch: int, **more: Any) -> torch.Tensor:
        model = start_tagger(tiny_bert, labels, max_tokens=40)
        task = NerTask(model, NerSettings.model_validate({**given, **more}), examples, [])
        return task.collate(np.array(items), epoch).inputs["input_ids"]

    mask_id, everyone = load_tokenizer(tiny_bert).mask_token_id, list(range(len(examples)))
    plain, masked = read(everyone, 1), read(everyone, 1, mask_share=0.3)
    content = sum(range(2, 38))
    assert (masked == mask_id).sum().item() == pytest.approx(0.3 * content, abs=4 * (0.3 * 0.7 * content) ** 0.5)
    assert torch.equal(torch.where(masked == mask_id, plain, masked), plain)
    frames = plain != plain[-1, 1]  # [CLS], [SEP] and padding: all that is not the word
    assert torch.equal(masked[frames], plain[frames])
    alone = read([7], 1, mask_share=0.3)[0]
    assert torch.equal(alone, masked[7, : len(alone)])
    assert not torch.equal(read(everyone, 2, mask_share=0.3), masked)
    assert not torch.equal(read(everyone, 1, mask_share=0.3, seed=5), masked)


def test_masks_need_a_mask_token(tiny_bert: Path) -> None:
    model = start_tagger(tiny_bert, LabelSet.of_types(["Disease"]), max_tokens=40)
    model.tokenizer.mask_token = None
    given = {"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "mask_share": 0.3}
    with pytest.raises(RequestError, match="mask_share: expected a tokenizer with a mask token, found none"):
        NerTask(model, NerSettings.model_validate(given), [], [])


def test_a_loss_is_that_of_transformers_own(tiny_bert: Path) -> None:
    labels = LabelSet.of_types(["Disease"])
    example = Example(("gout", "of", "the", "patient"), ("B-Disease", "O", "O", "O"), "1")
    settings = NerSettings.model_validate({"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "max_tokens": 40})
    model = start_tagger(tiny_bert, labels, max_tokens=40)
    model.network.eval()
    task = NerTask(model, settings, [example], [])
    batch = task.collate(np.array([0]), 0)
    ours = task.loss(model.network, batch)["tags"] / batch.counts["tags"]
    theirs = model.network.network(
        input_ids=batch.inputs["input_ids"], labels=torch.tensor([[-100, 1, 0, 0, 0, -100]])
    ).loss
    torch.testing.assert_close(ours, theirs)


def test_stopped_and_resumed_it_ends_with_the_same_weights(
    context: StageContext, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(context, given, epochs=2, decoder="crf", mask_share=0.2)
    other = StageContext(tmp_path / "other", context.cache)
    other.output.mkdir()
    monkeypatch.setattr(Training, "_evaluate", stopping_after(Training._evaluate))
    with pytest.raises(Stopped):
        learn(other, given, epochs=2, decoder="crf", mask_share=0.2)
    monkeypatch.undo()
    learn(other, given, epochs=2, decoder="crf", mask_share=0.2)
    for name in ("model.safetensors", "crf.safetensors", "ner.json"):
        assert (context.output / "model" / name).read_bytes() == (other.output / "model" / name).read_bytes()


def test_types_of_dev_that_train_lacks_are_told(
    context: StageContext, given: dict[str, Any], write_sentences: Any
) -> None:
    train = write_sentences("diseases.tsv", 20, types=("Disease",))
    with pytest.raises(RequestError, match=r"types Chemical, found Disease in .*diseases\.tsv"):
        learn(context, given, train=[{"path": str(train)}])


def test_data_with_types_that_the_model_lacks_is_told(
    context: StageContext, given: dict[str, Any], write_sentences: Any, tmp_path: Path
) -> None:
    learn(context, given, types=["Chemical"], epochs=1)
    test = write_sentences("test.tsv", 20)
    with pytest.raises(RequestError, match=r"types Chemical, and .*test\.tsv has Disease as well.*`types`"):
        evaluate(context, tmp_path, test=[{"path": str(test)}])
    assert evaluate(context, tmp_path, test=[{"path": str(test)}], types=["Chemical"])["gold_entities"] > 0


def test_the_transitions_of_a_crf_learn_at_a_rate_of_their_own(context: StageContext, given: dict[str, Any]) -> None:
    def follow(**more: Any) -> torch.Tensor:
        learn(context, given, decoder="crf", learning_rate=1e-4, epochs=4, dev=[], **more)
        crf = load_model(context.output / "model").network.crf
        assert crf is not None
        return crf.follow.detach()

    slow, by_default, fast = (follow(**more) for more in ({"crf_learning_rate": 1e-4}, {}, {"crf_learning_rate": 0.1}))
    assert slow.abs().max() < 0.01
    assert by_default.abs().max() > 50 * slow.abs().max()
    assert fast.abs().max() > 5 * by_default.abs().max()


def test_a_rate_of_the_crf_counts_only_where_there_is_one() -> None:
    least = {"base": "/m", "train": [{"path": "/t.tsv"}]}

    def counted(**more: Any) -> dict[str, Any]:
        settings = NerSettings.model_validate({**least, **more})
        assert NerSettings.model_validate(settings.model_dump()) == settings
        return {leaf.key: leaf.value for leaf in leaves(settings) if not leaf.run_only}

    assert "crf_learning_rate" not in counted()  # what a softmax learnt before there was a rate is not learnt again
    assert counted(decoder="crf")["crf_learning_rate"] == 0.01
    with pytest.raises(ValidationError, match="crf_learning_rate: without effect, because decoder is not crf"):
        counted(crf_learning_rate=0.01)
