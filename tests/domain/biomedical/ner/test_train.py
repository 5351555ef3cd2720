"""A tiny BERT learns synthetic entities, and is scored on them."""

import json
import re
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from device_waits import waits_in_steps
from pydantic import ValidationError
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2
from synthetic_questions import MENTIONS, PLAIN, start_tagger, stopped_and_resumed

from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.fingerprint import leaves
from bertrelay.model.tokenizer import load_tokenizer
from bertrelay.report import read_report
from bertrelay.stage import StageContext
from domain.biomedical.documents.tags import TokenSpan, follows
from domain.biomedical.ner import evaluate as evaluation
from domain.biomedical.ner import train as training
from domain.biomedical.ner.data import Example, read_examples
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import save_model
from domain.biomedical.ner.settings import EntitySource, NerEvaluateSettings, NerSettings
from domain.biomedical.ner.train import NerTask

LEARNING = {
    "max_tokens": 40,
    "overlap": 8,
    "epochs": 12,
    "batch_tokens": 128,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "seed": 3,
}
DISEASE = LabelSet.of_types(["Disease"])


def sentence(generator, plain, types):
    """A few plain words with their tags, and up to two entities among them."""
    words = [(str(word), "O") for word in generator.choice(PLAIN, plain)]
    for kind in types:
        if generator.random() < 0.7:
            mention = str(generator.choice(MENTIONS["disease" if kind == "Disease" else "chemical"])).split()
            tags = [f"B-{kind}", *[f"I-{kind}"] * (len(mention) - 1)]
            free = [position for position, tag in enumerate([*(tag for _, tag in words), "O"]) if tag[0] != "I"]
            position = int(generator.choice(free))
            words[position:position] = list(zip(mention, tags, strict=True))
    return words


def write_sentences(file, count, seed=0, plain=8, types=("Disease", "Chemical")):
    """Writes `count` synthetic sentences in CoNLL; returns the file as settings name it."""
    generator = np.random.default_rng(seed)
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag in sentence(generator, plain, types)) for _ in range(count)]
    file.write_text("\n".join(blocks))
    return [{"path": str(file)}]


def learn(learning, output, **more):
    output.mkdir(exist_ok=True)
    return training.run(NerSettings.model_validate({**learning, **more}), StageContext(output, Cache(output.parent)))


def evaluate(folder, tmp_path, test, **more):
    (tmp_path / "scores").mkdir(exist_ok=True)
    values = {"model": str(folder / "model"), "precision": "fp32", "test": test, **more}
    return evaluation.run(
        NerEvaluateSettings.model_validate(values), StageContext(tmp_path / "scores", Cache(tmp_path))
    )


def read_tsv(file):
    blocks = file.read_text().rstrip("\n").split("\n\n")
    return [[line.split("\t") for line in block.split("\n")] for block in blocks]


@pytest.fixture(scope="module")
def learning(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentences")
    train = write_sentences(folder / "train.tsv", 120, seed=1)
    return {**LEARNING, "base": str(tiny_bert), "train": train, "dev": write_sentences(folder / "dev.tsv", 40, seed=2)}


@pytest.mark.promise("Two processes that share an evaluation find what one does", about="processes")
def test_two_processes_that_share_an_evaluation_find_what_one_does(learning, tmp_path, evaluated_twice):
    evaluations = evaluated_twice("domain.biomedical.ner.train")
    learn(learning, tmp_path / "model", epochs=4)
    [(alone, shared)] = evaluations
    assert shared == alone and 0 < alone["dev/f1"] < 1


def task_of(base, examples, *, max_tokens=40, overlap=8, **more):
    windows = {"max_tokens": max_tokens, "overlap": overlap}
    settings = NerSettings.model_validate({"base": str(base), "train": [{"path": "none.tsv"}], **windows, **more})
    return NerTask(
        start_tagger(base, DISEASE, **windows, decoder=settings.decoder), settings, examples, [], ComputePrecision.FP32
    )


@pytest.mark.parametrize(("decoder", "scheme"), [("softmax", "IOB2"), ("crf", "IOBES")])
def test_entities_are_learned_and_scored_as_seqeval_scores_the_written_tags(learning, tmp_path, decoder, scheme):
    metrics = learn(learning, tmp_path / "trained", decoder=decoder, scheme=scheme, evaluate_every=60)
    assert metrics["dev/f1"] > 0.8
    scores = evaluate(tmp_path / "trained", tmp_path, write_sentences(tmp_path / "test.tsv", 60, seed=9))
    rows = read_tsv(tmp_path / "scores" / "predictions.tsv")
    assert [[row[:2] for row in sentence] for sentence in rows] == read_tsv(tmp_path / "test.tsv")  # every gold tag
    gold, predicted = ([[row[column] for row in sentence] for sentence in rows] for column in (1, 2))
    report = classification_report(gold, predicted, mode="strict", scheme=IOB2, output_dict=True)
    for ending, theirs in (("", "micro avg"), ("/Disease", "Disease"), ("/Chemical", "Chemical")):
        assert scores[f"f1{ending}"] == pytest.approx(report[theirs]["f1-score"])
        assert scores[f"f1{ending}_low"] <= scores[f"f1{ending}"] <= scores[f"f1{ending}_high"]
    assert scores["f1_lenient"] == pytest.approx(scores["f1"])
    assert scores["gold_entities"] == report["micro avg"]["support"]
    kinds = ("right", "wrong_span", "wrong_type", "wrong_both", "missed")
    assert sum(scores[kind] for kind in kinds) == scores["gold_entities"]
    assert scores["ece"] is not None
    shown = json.loads((tmp_path / "scores" / "examples.json").read_text())
    assert set(shown["right"][0]) == {"tokens", "gold", "predicted"}
    f1, _ = read_report(tmp_path / "scores").headlines
    assert f1.measure.value == pytest.approx(report["micro avg"]["f1-score"])
    of_types = {name: measures[0].value for name, measures in f1.chart.rows.items()}
    assert of_types == pytest.approx({name: report[name]["f1-score"] for name in ("Chemical", "Disease")})
    summary = read_report(tmp_path / "trained").summary
    assert "to mark Chemical and Disease in text, from 120 annotated sentences" in summary[0]


def test_the_calibration_error_of_the_report_is_that_of_the_confidences_in_the_files(learning, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "spread_evenly", list)  # examples.json then has every sentence with an entity
    learn(learning, tmp_path / "trained", epochs=8)
    metrics = evaluate(tmp_path / "trained", tmp_path, write_sentences(tmp_path / "test.tsv", 60, seed=9))
    shown = json.loads((tmp_path / "scores" / "examples.json").read_text())
    rows = [
        (confidence, [*span] in example["gold"])
        for example in [*shown["right"], *shown["wrong"]]
        for *span, confidence in example["predicted"]
    ]
    assert len(rows) == metrics["predicted_entities"] >= 20
    gaps = [0.0] * 10  # of bins of equal width
    for confidence, is_right in rows:
        gaps[min(int(10 * confidence), 9)] += confidence - is_right
    _, calibration = read_report(tmp_path / "scores").headlines
    assert calibration.measure.value == pytest.approx(sum(map(abs, gaps)) / len(rows))
    [before] = calibration.beside
    assert before.value == metrics["ece_uncalibrated"]


def test_every_gold_entity_of_any_file_counts(tiny_bert, tmp_path, capsys):
    save_model(start_tagger(tiny_bert, LabelSet.of_types(["Chemical", "Disease"]), max_tokens=40), tmp_path / "model")

    def gold_entities(test):
        return evaluate(tmp_path, tmp_path, test)["gold_entities"]

    count = gold_entities(write_sentences(tmp_path / "long.tsv", 5, seed=4, plain=100))
    long = read_tsv(tmp_path / "long.tsv")
    assert count == sum(row[1].startswith("B-") for sentence in long for row in sentence)
    assert [[row[:2] for row in rows] for rows in read_tsv(tmp_path / "scores" / "predictions.tsv")] == long
    illegal = tmp_path / "illegal.tsv"  # read as seqeval reads it
    illegal.write_text("no\tO\nflu\tI-Disease\n\ngout\tB-Disease\nseen\tO\n\n")
    assert gold_entities([{"path": str(illegal)}]) == 1
    first = {"start": 0, "end": 6, "type": "Disease"}
    row = {"text": "no\tflu\nseen", "sentences": [[[0, 6]], [[7, 11]]], "entities": [first]}
    own_tokens = tmp_path / "own-tokens.jsonl"
    own_tokens.write_text(f"{json.dumps(row)}\n" + json.dumps({"text": " ", "entities": [{**first, "end": 1}]}))
    assert gold_entities([{"path": str(own_tokens)}]) == 2
    assert [[row[0] for row in s] for s in read_tsv(tmp_path / "scores" / "predictions.tsv")] == [["seen"]]
    assert "left out 1 sentences that no lines can hold; the score counts them" in capsys.readouterr().err


def test_one_tagger_learns_each_type_from_the_corpus_that_annotates_it(learning, tmp_path, capsys):
    """In each corpus mentions of the other's type are there, without tags."""
    corpora = {}
    for number, kind in enumerate(("Disease", "Chemical")):
        for split, count in (("train", 80), ("dev", 30), ("test", 25)):
            file = tmp_path / f"{kind}.{split}.tsv"
            write_sentences(file, count, seed=[number, count, len(split)])
            other = "Chemical" if kind == "Disease" else "Disease"
            file.write_text(re.sub(f"[BI]-{other}", "O", file.read_text()))
            source = {"path": str(file), "types": {kind: kind}, "corpus": kind.lower()}
            corpora.setdefault(split, []).append(source)
    metrics = learn(learning, tmp_path / "model", train=corpora["train"], dev=corpora["dev"])
    assert metrics["dev/f1"] > 0.8 and min(metrics["dev/disease/f1"], metrics["dev/chemical/f1"]) > 0.7
    assert "has no entity of the types" not in capsys.readouterr().err
    both = write_sentences(tmp_path / "both.tsv", 30, seed=9)
    scores = evaluate(tmp_path / "model", tmp_path, [*corpora["test"], {**both[0], "corpus": "both"}])
    assert scores["both/f1"] > 0.8 and min(scores["both/f1/Disease"], scores["both/f1/Chemical"]) > 0.7
    assert scores["disease/f1_low"] <= scores["disease/f1"] <= scores["disease/f1_high"]
    assert scores["disease/precision"] > 0.8  # chemicals that it finds there do not count
    assert not {"disease/f1/Disease", "disease/f1/Chemical"} & scores.keys()
    titles = [headline.title for headline in read_report(tmp_path / "scores").headlines]
    assert titles[:3] == ["F1 of entities of disease", "F1 of entities of chemical", "F1 of entities of both"]
    plain = [EntitySource(path=source["path"], corpus=source["corpus"]) for source in corpora["train"]]
    training._warn_of_absent_types(read_examples(plain))
    assert "train: disease has no entity of the types Chemical, and is trained on as text" in capsys.readouterr().err


def test_small_corpora_are_drawn_more_often_and_repeated_windows_have_other_masks(tiny_bert):
    examples = [Example(("gout", str(n)), (), str(n), corpus="large" if n else "small") for n in range(17)]
    task = task_of(tiny_bert, examples, sampling_temperature=2.0)
    assert len(task.lengths(0)) == 17  # parts in proportion to √16 and √1: 13.6 and 3.4
    drawn = [task.windows.sequences[task._items(epoch)] for epoch in (0, 1)]
    assert [(sequences == 0).sum() for sequences in drawn] == [3, 3] and not np.array_equal(*drawn)
    assert len(task.collate(np.arange(17), 0).inputs["input_ids"]) == 17
    assert task_of(tiny_bert, examples)._items(0).tolist() == list(range(17))


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_the_loss_of_partial_labels_is_that_of_all_tags_that_agree_with_them(tiny_bert, decoder):
    example = Example(("gout", "of", "aspirin"), (TokenSpan(0, 1, "Disease"),), "1", annotated=frozenset({"Disease"}))
    labels = LabelSet.of_types(["Chemical", "Disease"])
    settings = NerSettings.model_validate({"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "decoder": decoder})
    model = start_tagger(tiny_bert, labels, max_tokens=40, decoder=decoder)
    task = NerTask(model, settings, [example], [], ComputePrecision.FP32)
    batch = task.collate(np.array([0]), 0)
    network = task.model.eval()
    emissions = network(
        **{
            k: v
            for k, v in batch.inputs.items()
            if k in ("input_ids", "attention_mask", "first_subwords", "token_type_ids")
        }
    )
    mass = {}
    for tags in product(range(5), repeat=3):  # O, B-Chemical, I-Chemical, B-Disease, I-Disease
        names = [labels.tags[tag] for tag in tags]
        legal = all(follows(tag, before, "IOB2") for before, tag in pairwise(["O", *names]))
        if decoder == "softmax" or legal:
            mass[tuple(names)] = sum(emissions[word, tag] for word, tag in enumerate(tags)).exp()
    agreeing = [
        names
        for names in mass
        if [n.replace("I-C", "B-C").replace("B-Chemical", "O") for n in names] == ["B-Disease", "O", "O"]
    ]
    assert len(agreeing) == (9 if decoder == "softmax" else 5)  # of O, B and I, in a CRF without O I and I first
    expected = -(sum(mass[names] for names in agreeing) / sum(mass.values())).log()
    torch.testing.assert_close(task.loss(network, batch)["tags"], expected)


def test_marked_capitals_distinguish_abbreviations_from_words(learning, tmp_path):
    block = "the\tO\n{}\t{}\nwas\tO\nmild\tO\n"
    pairs = [("GOUT", "B-Disease"), ("gout", "O"), ("FLU", "B-Disease"), ("flu", "O")]
    (tmp_path / "capitals.tsv").write_text("\n".join(block.format(*pair) for pair in pairs * 20))
    source = [{"path": str(tmp_path / "capitals.tsv")}]
    metrics = learn(
        learning, tmp_path / "output", train=source, dev=source, capitals=True, epochs=20, evaluate_every=40
    )
    scores = evaluate(tmp_path / "output", tmp_path, source)  # the mark is read from the folder again
    assert scores["f1"] == metrics["dev/f1"] == 1  # without it at most 2/3, for as many that are none look the same


def test_stopped_and_resumed_it_ends_with_the_same_weights(learning, tmp_path):
    options = {"epochs": 2, "decoder": "crf", "mask_share": 0.2, "batch_tokens": 256}
    whole, resumed = stopped_and_resumed(lambda folder: learn(learning, folder, **options), tmp_path)
    assert whole.keys() >= {"model.safetensors", "crf.safetensors", "ner.json"}
    assert whole == resumed


@pytest.mark.promise("Between two lines of the log a tagger's training waits for no device", about="waiting")
@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_between_two_lines_of_the_log_a_tagger_waits_for_no_device(learning, tmp_path, decoder, monkeypatch):
    counts = waits_in_steps(monkeypatch)
    learn(learning, tmp_path / "output", decoder=decoder, epochs=1, dev=[])
    assert len(counts) > 5 and not any(counts)


def test_missing_types_and_entities_are_reported(tiny_bert, learning, tmp_path, capsys):
    train = write_sentences(tmp_path / "diseases.tsv", 20, types=("Disease",))
    with pytest.raises(RequestError, match=r"types Chemical, found Disease in .*diseases\.tsv"):
        learn(learning, tmp_path / "output", train=train)
    train[0]["path"] = str(tmp_path / "divided.tsv")
    (tmp_path / "divided.tsv").write_text("no\tO\nflu-gout\tB-Disease\n")
    with pytest.raises(RequestError, match="Chemical"):
        learn(learning, tmp_path / "output", train=train)
    assert "train: 1 of 1 tokens of entities are not single words of raw text (flu-gout" in capsys.readouterr().err
    (tmp_path / "none.tsv").write_text("no\tO\nflu\tO\n")
    with pytest.raises(RequestError, match=r"dev: expected entities, found none in .*none\.tsv"):
        learn(learning, tmp_path / "output", dev=[{"path": str(tmp_path / "none.tsv")}])
    save_model(start_tagger(tiny_bert, LabelSet.of_types(["Chemical"]), max_tokens=40), tmp_path / "model")
    test = write_sentences(tmp_path / "test.tsv", 20)
    with pytest.raises(RequestError, match=r"types Chemical, and .*test\.tsv has Disease as well.*`types`"):
        evaluate(tmp_path, tmp_path, test)
    assert evaluate(tmp_path, tmp_path, test, types=["Chemical"])["gold_entities"] > 0


def documents(*texts):
    """PubTator of documents with a title and an abstract, and an entity in each."""
    return "".join(f"{n}|t|{n} gout.\n{n}|a|{text}\n{n}\t2\t6\tgout\tDisease\n\n" for n, text in texts)


def test_documents_of_dev_that_are_in_train_are_refused_and_sentences_counted(learning, tmp_path, capsys):
    train = [(n, f"First of {n}. Second of {n}. It is mild.") for n in range(1, 9)]
    (tmp_path / "train.txt").write_text(documents(*train))
    source = {"format": "pubtator", "path": str(tmp_path / "train.txt")}
    for number, dev in enumerate(
        (
            [(9, "First of 9. It is mild."), (8, train[7][1])],  # one of them is in train
            [(9, "First of 9. It is mild."), (8, "Another first. Second of 8. It is mild.")],  # and here most of it
        )
    ):
        (tmp_path / f"dev{number}.txt").write_text(documents(*dev))
        with pytest.raises(RequestError, match="dev: expected documents that are not in train, found 1 that"):
            learn(
                learning,
                tmp_path / "output",
                train=[source],
                dev=[source | {"path": str(tmp_path / f"dev{number}.txt")}],
            )
    (tmp_path / "dev.txt").write_text(documents((9, "First of 9. It is mild."), (1, "Of another with that number.")))
    dev = [source | {"path": str(tmp_path / "dev.txt")}]
    metrics = learn(learning, tmp_path / "output", train=[source], dev=dev, epochs=1)
    assert metrics["dev_sentences_in_train"] == 2  # "It is mild." and the title "1 gout."
    assert "dev: of 5 distinct sentences, 2 in train too; so many" in capsys.readouterr().err


def test_a_file_of_sentences_that_is_train_and_dev_is_refused(learning, tmp_path):
    with pytest.raises(RequestError, match=r"dev: expected sentences that are not in train, found 40 of 40 that are"):
        learn(learning, tmp_path / "output", train=[*learning["train"], *learning["dev"]])


def test_windows_of_a_long_sentence_teach_every_tag_once(tiny_bert):
    diseases = (TokenSpan(word, word + 1, "Disease") for word in range(120) if word % 3 != 1)
    example = Example(("gout", "of", "pectorisxyz") * 40, tuple(diseases), "1")
    task = task_of(tiny_bert, [example], max_tokens=16, overlap=6, decoder="crf")
    batch = task.collate(np.arange(len(task.window_lengths)), 0)
    assert batch.counts == {"tags": 120}
    assert batch.inputs["tags"].tolist() == [1, 0, 1] * 40
    assert batch.inputs["opens"].tolist() == [True] + [False] * (len(task.window_lengths) - 1)
    assert batch.inputs["closes"].tolist() == [False] * (len(task.window_lengths) - 1) + [True]


def test_the_loss_is_that_of_transformers(tiny_bert):
    task = task_of(tiny_bert, [Example(("gout", "of", "the", "patient"), (TokenSpan(0, 1, "Disease"),), "1")])
    network = task.model.eval()
    batch = task.collate(np.array([0]), 0)
    ours = task.loss(network, batch)["tags"] / batch.counts["tags"]
    labels = torch.tensor([[-100, 1, 0, 0, 0, -100]])
    torch.testing.assert_close(ours, network.network(input_ids=batch.inputs["input_ids"], labels=labels).loss)


def test_masks_differ_by_epoch_and_do_not_depend_on_the_batch(tiny_bert):
    examples = [Example(("gout",) * length, (), str(length)) for length in range(2, 38)]

    def read(items, epoch, **more):
        return task_of(tiny_bert, examples, **more).collate(np.array(items), epoch).inputs["input_ids"]

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

    model = start_tagger(tiny_bert, DISEASE, max_tokens=40)
    model.tokenizer.mask_token = None
    settings = NerSettings.model_validate({"base": str(tiny_bert), "train": [{"path": "none.tsv"}], "mask_share": 0.3})
    with pytest.raises(RequestError, match="mask_share: expected a tokenizer with a mask token, found none"):
        NerTask(model, settings, [], [], ComputePrecision.FP32)


def test_the_transitions_of_a_crf_have_another_learning_rate(tiny_bert):
    least = {"base": str(tiny_bert), "train": [{"path": "/t.tsv"}]}

    def counted(**more):
        settings = NerSettings.model_validate({**least, **more})
        assert NerSettings.model_validate(settings.model_dump()) == settings
        return {leaf.key: leaf.value for leaf in leaves(settings) if not leaf.run_only}

    assert counted()["crf_learning_rate"] is None
    assert counted(decoder="crf")["crf_learning_rate"] == 0.01
    with pytest.raises(ValidationError, match="crf_learning_rate: without effect, because decoder is softmax"):
        counted(crf_learning_rate=0.01)
    settings = NerSettings.model_validate({**least, "decoder": "crf", "learning_rate": 1e-4})
    model = start_tagger(tiny_bert, DISEASE, max_tokens=40, decoder="crf")
    factors = NerTask(model, settings, [], [], ComputePrecision.FP32).rate_factors()
    assert factors == pytest.approx({f"crf.{name}": 100 for name in ("start", "follow", "end")})
    assert set(factors) <= {name for name, _ in model.network.named_parameters()}
