"""A teacher learns a toy language in which sentences about one animal mean the same."""

import json

import numpy as np
import pytest
import torch

from bertrelay.cache import Cache
from bertrelay.data.tokens import Tokens, store_tokens
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Projection
from bertrelay.stage import StageContext
from bertrelay.training.batches import micro_batches
from teachers.model import Teacher, start_head
from teachers.settings import TrainSettings
from teachers.train import TeacherData, TeacherTask, run, start_encoder

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
VERBS = ["runs", "sleeps", "eats", "waits", "sings"]
PLACES = ["here", "there", "in the park", "near the old station", "at home"]
NEW = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 120, "max_tokens": 24, "dropout": 0.0}
SETTINGS = {
    "base": NEW,
    "seed": 2,
    "epochs": 6,
    "batch_items": 8,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "log_every": 5,
}


def sentence(animal, generator):
    return f"a {animal} {generator.choice(VERBS)} {generator.choice(PLACES)}"


def records(objective, count, seed):
    """Pairs are similar when they share their animal, and as near as animals stand in the list."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        first, second = generator.choice(len(ANIMALS), 2, replace=False)
        if objective not in ("triplet", "contrastive") and generator.random() < 0.5:
            second = first
        u, v = (sentence(ANIMALS[animal], generator) for animal in (first, second))
        if objective == "softmax":
            yield f"{u}\t{v}\t{'similar' if first == second else 'dissimilar'}"
        elif objective == "cosine":
            yield f"{u}\t{v}\t{5 - abs(first - second)}"
        else:
            yield f"{u}\t{sentence(ANIMALS[first], generator)}\t{v}"


def write_toy(folder, objective, train=240):
    names = {"softmax": "premise hypothesis label", "cosine": "sentence1 sentence2 score"}
    columns = names.get(objective, "anchor positive negative").split()
    tables = {}
    for part, count, seed in (("train", train, 1), ("dev", 80, 2)):
        path = folder / f"{objective}.{part}.tsv"
        path.write_text("\n".join(["\t".join(columns), *records(objective, count, seed)]) + "\n")
        tables[part] = [{"path": str(path), "columns": columns}]
    return {**SETTINGS, "objective": objective, **tables}


def teach(context, given):
    return run(TrainSettings.model_validate(given), context)


@pytest.mark.parametrize("objective", ["softmax", "cosine"])
def test_two_processes_that_share_an_evaluation_find_what_one_does(context, tmp_path, evaluated_twice, objective):
    found = evaluated_twice("teachers.train")
    given = write_toy(tmp_path, objective)
    sts = {"dev_sts": {"toy": given["dev"][0]}} if objective == "cosine" else {}
    teach(context, {**given, **sts, "epochs": 1})
    [(alone, shared)] = found
    assert shared == pytest.approx(alone, abs=1e-5) and len(alone) == (3 if sts else 1)


def in_folder(folder):
    for name in ("output", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return StageContext(folder / "output", Cache(folder / "cache"))


def lines(context, key):
    log = (context.output / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, log) if key in line]


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    """A teacher of the softmax objective: its settings, where it is, and its metrics."""
    folder = tmp_path_factory.mktemp("nli")
    given = write_toy(folder, "softmax")
    return given, in_folder(folder), teach(in_folder(folder), given)


# Learning


@pytest.mark.parametrize(
    ("objective", "criterion", "least"),
    [
        ("cosine", "dev/spearman_cosine", 0.3),
        ("triplet", "dev/triplet_accuracy", 0.8),
        ("contrastive", "dev/retrieval_accuracy", 4 / 80),  # one in eighty by chance, and animals have many sentences
    ],
)
def test_a_teacher_from_scratch_learns_and_its_linear_layer_with_it(context, tmp_path, objective, criterion, least):
    given = {**write_toy(tmp_path, objective), "linear": True}
    metrics = teach(context, given)
    losses = [line["loss"] for line in lines(context, "loss")]
    assert losses[-1] < (0.8 if objective == "contrastive" else 0.5) * losses[0]
    assert metrics[criterion] > least
    assert metrics["train_items"] == len(set(records(objective, 240, 1)))
    learnt = SentenceEncoder.load(context.output / "model").projection
    begun = start_encoder(TrainSettings.model_validate(given), ["a dog"], context).projection
    assert not torch.allclose(learnt.linear.weight, begun.linear.weight, atol=1e-4)


def test_a_teacher_from_scratch_learns_to_classify(nli):
    _, context, metrics = nli
    assert lines(context, "loss")[0]["loss"] == pytest.approx(np.log(2), abs=0.15)  # two classes, nothing known yet
    assert metrics["dev/accuracy"] > 0.8
    found = {path.name for path in context.output.iterdir()} - {context.work.name}
    assert found == {"head", "metrics.jsonl", "model", "rejects.jsonl"}


def test_sts_sets_choose_by_their_mean_and_the_own_metric_is_beside_it(context, tmp_path):
    given = write_toy(tmp_path, "softmax", train=64)
    write_toy(tmp_path, "cosine")
    sets = {name: {"path": str(tmp_path / f"cosine.{part}.tsv")} for name, part in (("a", "dev"), ("b", "train"))}
    metrics = teach(context, {**given, "dev_sts": sets, "epochs": 1})
    [evaluation] = lines(context, "dev/sts/spearman_cosine")
    by_set = [evaluation[f"dev/sts/{name}/spearman_cosine"] for name in sets]
    assert metrics["dev/sts/spearman_cosine"] == pytest.approx(np.mean(by_set))
    assert metrics["dev/accuracy"] == evaluation["dev/accuracy"]
    assert not [name for name in metrics if name.startswith("sts/")], "a dev score must not be taken for a test score"


# What a step learns from


@pytest.mark.parametrize("objective", ["softmax", "cosine", "triplet"])
def test_a_batch_gives_the_loss_of_its_items_one_by_one(context, tmp_path, objective):
    task = toy_task(context, write_toy(tmp_path, objective, train=24))
    task.model.eval()
    items = np.array([3, 17, 8, 11])
    batch = task.collate(items, 0)
    assert batch.counts == {objective: 4}
    loss = task.loss(task.model, batch)[objective].item()
    rows = (tmp_path / f"{objective}.train.tsv").read_text().splitlines()[1:]
    fields = [rows[item].split("\t") for item in items]
    assert loss == pytest.approx(sum(item_loss(task.model, objective, *field) for field in fields), rel=1e-4)


def item_loss(model, objective, first, second, third):
    u, v = (vector.astype(np.float64) for vector in model.encoder.encode([first, second], precision="fp32"))
    if objective == "triplet":
        n = model.encoder.encode([third], precision="fp32")[0].astype(np.float64)
        return float(max(np.linalg.norm(u - v) - np.linalg.norm(u - n) + 1, 0))
    if objective == "cosine":
        return float((u @ v / np.linalg.norm(u) / np.linalg.norm(v) - float(third) / 5) ** 2)
    assert model.head is not None
    weight, bias = (tensor.detach().double().numpy() for tensor in (model.head.weight, model.head.bias))
    logits = weight @ np.concatenate([u, v, abs(u - v)]) + bias
    return float(np.log(np.exp(logits).sum()) - logits[["dissimilar", "similar"].index(third)])


def toy_task(context, given):
    settings = TrainSettings.model_validate(given)
    data = TeacherData.read(settings, context)
    texts = data.train.sentences
    encoder = start_encoder(settings, texts, context)
    tokens = store_tokens(lambda a, b: texts[a:b], len(texts), encoder.tokenize, context.output / "tokens")
    head = start_head(settings, encoder, data.classes) if settings.objective == "softmax" else None
    return TeacherTask(
        Teacher(encoder, head, settings.dropout, settings.concatenation), settings, data, tokens, ComputePrecision.FP32
    )


def test_more_dimensions_than_the_model_has_are_refused(context, tmp_path):
    given = {**write_toy(tmp_path, "cosine", train=24), "dimensions": [8, 64]}
    with pytest.raises(RequestError, match="dimensions: expected at most the 32 of the model's vectors, found 64"):
        teach(context, given)


def test_micro_batches_keep_within_memory_however_uneven_the_sides(context, tmp_path):
    given = write_toy(tmp_path, "triplet", train=24)
    path = tmp_path / "triplet.train.tsv"
    header, *rows = path.read_text().splitlines()
    long = ["a dog runs here " * 3 + row if number % 3 == 0 else row for number, row in enumerate(rows)]
    path.write_text("\n".join([header, *long]) + "\n")
    task = toy_task(context, given)
    for device_tokens in (60, 200):
        pieces = micro_batches(np.arange(24), task.lengths, task.padded_lengths, device_tokens)
        sizes = [(len(piece), task.collate(piece, 0).inputs["input_ids"].numel()) for piece in pieces]
        assert sum(items for items, _ in sizes) == 24
        assert all(items == 1 or size <= device_tokens for items, size in sizes)


def test_a_base_with_a_default_prompt_learns_behind_it(tiny_encoder, context, tmp_path):
    given = write_toy(tmp_path, "cosine", train=24)
    texts = ["a dog runs here", "the cat sleeps there"]
    tiny_encoder("bert", texts, prompts=Prompts({"all": "the cat "}, "all")).save(tmp_path / "base")
    teach(context, {**given, "base": str(tmp_path / "base"), "epochs": 1})
    tokens = Tokens(context.work / "tokens")
    first = TeacherData.read(TrainSettings.model_validate(given), context).train.sentences[0]
    trained = SentenceEncoder.load(context.output / "model")
    assert trained.prompts.text() == "the cat "
    assert tokens.padded(np.array([0]), trained.pad_id)[0][0].tolist() == trained.tokenize(["the cat " + first])[0]


def test_dropout_is_on_the_sentence_vectors_and_only_while_training(context, tmp_path):
    task = toy_task(context, {**write_toy(tmp_path, "cosine", train=24), "dropout": 0.5})
    batch = task.collate(np.arange(8), 0)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    whole = task.model.eval()(ids, mask)
    dropped = task.model.train()(ids, mask)
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    vectors = task.model.encoder.encode(["a dog runs here"] * 2, precision="fp32")
    assert np.all(vectors != 0), "the encoder has none of it"


# Classes and heads


def test_other_than_2_to_100_classes_and_dev_data_of_other_ones_are_refused(context, tmp_path):
    given = write_toy(tmp_path, "softmax", train=24)
    train, dev = (tmp_path / f"softmax.{part}.tsv" for part in ("train", "dev"))
    original = train.read_text()
    dev.write_text(dev.read_text().replace("dissimilar", "DISSIMILAR"))
    with pytest.raises(RequestError, match=r"dev:.*dissimilar, similar.*found 1 other"):
        teach(context, given)
    train.write_text(original.replace("dissimilar", "similar"))
    with pytest.raises(RequestError, match="expected 2 to 100 classes, found 1"):
        teach(context, given)
    rows = [f"a dog\ta cat\tsomething private {number}" for number in range(101)]
    train.write_text("\n".join(["premise\thypothesis\tlabel", *rows]))
    with pytest.raises(RequestError, match="found 101") as raised:
        teach(context, given)
    assert "private" not in str(raised.value)


def test_a_head_is_saved_beside_the_encoder_and_trained_further(nli, context):
    given, first, _ = nli
    saved = {"base": str(first.output / "model"), "head": str(first.output / "head")}
    for folder, head in (("head", saved), ("no-head", {"base": saved["base"]})):
        teach(in_folder(context.output / folder), {**given, **head, "epochs": 1, "log_every": 1})
    losses = [lines(in_folder(context.output / folder), "loss")[0]["loss"] for folder in ("head", "no-head")]
    assert losses[0] < 0.1 < losses[1]


@pytest.mark.parametrize(
    ("changed", "classes", "pooling", "expected"),
    [
        ({}, ["no", "yes"], "mean", r"trained for \['dissimilar', 'similar'\].*has \['no', 'yes'\]"),
        ({"concatenation": ["|u-v|"]}, None, "mean", r"on \['u', 'v', '\|u-v\|'\].*on \['\|u-v\|'\]"),
        ({}, None, "max", r"a linear map of 192 numbers in .*head\.safetensors, found none that"),
        ({"head": "/nowhere"}, None, "mean", r"expected head\.json and head\.safetensors"),
    ],
)
def test_a_head_of_other_classes_or_another_size_is_refused(nli, changed, classes, pooling, expected):
    given, first, _ = nli
    own = {"base": str(first.output / "model"), "head": str(first.output / "head"), **changed}
    encoder = SentenceEncoder.load(first.output / "model")
    if pooling == "max":
        encoder = SentenceEncoder(encoder.backbone, encoder.tokenizer, pooling=["mean", "max"])
    with pytest.raises(RequestError, match=expected):
        start_head(TrainSettings.model_validate({**given, **own}), encoder, classes or ["dissimilar", "similar"])


# The start

SENTENCES = ["A dog runs in the park.", "Two cats sleep.", "The bird sings in the tall tree.", "A child reads."]
SMALL = {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 80, "max_tokens": 24}


def start(context, base, sentences=SENTENCES, **given):
    fields = {"base": base, "objective": "softmax", "train": [{"path": "train.tsv"}], **given}
    return start_encoder(TrainSettings.model_validate(fields), sentences, context)


def weights(encoder):
    return torch.cat([weight.flatten() for weight in encoder.parameters()])


def test_the_seed_decides_a_new_teachers_weights_and_nothing_else_does(context):
    torch.manual_seed(5)
    first = weights(start(context, SMALL, seed=1, linear=True))
    after = torch.rand(1)
    torch.manual_seed(6)
    torch.testing.assert_close(first, weights(start(context, SMALL, seed=1, linear=True)), rtol=0, atol=0)
    assert not torch.equal(first, weights(start(context, SMALL, seed=2, linear=True)))
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # the caller's generator is where it was


def test_a_base_keeps_what_the_settings_do_not_name(context, tiny_encoder, tmp_path):
    torch.manual_seed(3)
    projection, folder = Projection(16, 16), str(tmp_path / "base")
    tiny_encoder("bert", SENTENCES, pooling=["cls"]).save(folder)
    assert start(context, folder).pooling.modes == ("cls",)
    both = start(context, folder, pooling=["mean", "max"], linear=True)
    assert both.dim == 32 and both.projection.linear.weight.shape == (32, 32)
    assert len(start(context, folder, max_tokens=5).tokenize([SENTENCES[2]])[0]) == 5
    tiny_encoder("bert", SENTENCES, projection=projection).save(folder)
    kept = start(context, folder, linear=True, seed=9)
    assert torch.equal(kept.projection.linear.weight, projection.linear.weight)
