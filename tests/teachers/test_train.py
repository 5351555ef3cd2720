"""A teacher learns a toy language in which sentences about one animal mean the same."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertrelay.data.tokens import Tokens, tokens_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.layout import Prompts
from bertrelay.pooling import Projection
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import micro_batches
from teachers.objectives import Teacher, start_head
from teachers.settings import TrainSettings
from teachers.train import TeacherData, TeacherTask, run, start_encoder

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
VERBS = ["runs", "sleeps", "eats", "waits", "sings"]
PLACES = ["here", "there", "in the park", "near the old station", "at home"]
NEW = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 120, "max_tokens": 24, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
    "base": NEW,
    "seed": 2,
    "epochs": 6,
    "batch_items": 8,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "log_every": 5,
}


def sentence(animal: str, generator: np.random.Generator) -> str:
    return f"a {animal} {generator.choice(VERBS)} {generator.choice(PLACES)}"


def records(objective: str, count: int, seed: int) -> Iterator[str]:
    """Pairs are similar when they share their animal, and as near as animals stand in the list."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        first, second = generator.choice(len(ANIMALS), 2, replace=False)
        if objective != "triplet" and generator.random() < 0.5:
            second = first
        u, v = (sentence(ANIMALS[animal], generator) for animal in (first, second))
        if objective == "softmax":
            yield f"{u}\t{v}\t{'similar' if first == second else 'dissimilar'}"
        elif objective == "cosine":
            yield f"{u}\t{v}\t{5 - abs(first - second)}"
        else:
            yield f"{u}\t{sentence(ANIMALS[first], generator)}\t{v}"


def write_toy(folder: Path, objective: str, train: int = 240) -> dict[str, Any]:
    names = {"softmax": "premise hypothesis label", "cosine": "sentence1 sentence2 score"}
    header = names.get(objective, "anchor positive negative").replace(" ", "\t")
    for part, count, seed in (("train", train, 1), ("dev", 80, 2), ("test", 80, 3)):
        rows = [header, *records(objective, count, seed)]
        (folder / f"{objective}.{part}.tsv").write_text("\n".join(rows) + "\n")
    tables = {part: [{"path": str(folder / f"{objective}.{part}.tsv")}] for part in ("train", "dev")}
    return {**SETTINGS, "objective": objective, **tables}


def teach(context: StageContext, given: dict[str, Any]) -> Metrics:
    return run(TrainSettings.model_validate(given), context)


def in_folder(folder: Path) -> StageContext:
    for name in ("output", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return StageContext(folder / "output", folder / "cache")


def lines(context: StageContext, key: str) -> list[dict[str, Any]]:
    log = (context.output / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, log) if key in line]


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], StageContext, Metrics]:
    """A teacher of the softmax objective: its settings, where it is, and its metrics."""
    folder = tmp_path_factory.mktemp("nli")
    given = write_toy(folder, "softmax")
    return given, in_folder(folder), teach(in_folder(folder), given)


# Learning


CRITERIA = {"softmax": "dev/accuracy", "cosine": "dev/spearman_cosine", "triplet": "dev/triplet_accuracy"}
CHANCE = {"softmax": 0.5, "cosine": 0.0, "triplet": 0.5}


@pytest.mark.parametrize("objective", ["cosine", "triplet"])
def test_a_teacher_from_scratch_learns(context: StageContext, tmp_path: Path, objective: str) -> None:
    metrics = teach(context, write_toy(tmp_path, objective))
    losses = [line["loss"] for line in lines(context, "loss")]
    assert losses[-1] < 0.5 * losses[0]
    assert metrics[CRITERIA[objective]] > CHANCE[objective] + 0.3
    assert metrics["train_items"] == 240


def test_a_teacher_from_scratch_learns_to_classify(nli: tuple[dict[str, Any], StageContext, Metrics]) -> None:
    _, context, metrics = nli
    losses = [line["loss"] for line in lines(context, "loss")]
    assert losses[0] == pytest.approx(np.log(2), abs=0.15)  # two classes, nothing known yet
    assert metrics["dev/accuracy"] > 0.8
    found = {path.name for path in context.output.iterdir()} - {context.work.name}
    assert found == {"head", "metrics.jsonl", "model", "rejects.jsonl"}


def test_the_best_dev_score_chooses_the_weights_that_are_saved(context: StageContext, tmp_path: Path) -> None:
    spoilt = {"learning_rate": 0.2, "schedule": "constant", "evaluate_every": 5, "epochs": 3}
    given = {**write_toy(tmp_path, "cosine"), **spoilt}
    metrics = teach(context, given)
    looks = lines(context, "dev/spearman_cosine")
    scores = [look["dev/spearman_cosine"] for look in looks]
    best = max(range(len(scores)), key=lambda place: -1 if scores[place] is None else scores[place])
    assert best < len(scores) - 1, "the learning rate was to spoil the end"
    assert metrics["best_step"] == looks[best]["step"]
    assert metrics["dev/spearman_cosine"] == scores[best]
    task = toy_task(in_folder(tmp_path / "again"), {**given, "base": str(context.output / "model")})
    assert task.evaluate()["dev/spearman_cosine"] == scores[best]


def test_sts_sets_choose_by_their_mean_and_the_own_measure_is_told_beside(
    context: StageContext, tmp_path: Path
) -> None:
    given = write_toy(tmp_path, "softmax", train=64)
    write_toy(tmp_path, "cosine")
    sets = {name: {"path": str(tmp_path / f"cosine.{part}.tsv")} for name, part in (("a", "dev"), ("b", "train"))}
    metrics = teach(context, {**given, "dev_sts": sets, "epochs": 1})
    [look] = lines(context, "dev/sts/spearman_cosine")
    by_set = [look[f"dev/sts/{name}/spearman_cosine"] for name in sets]
    assert metrics["dev/sts/spearman_cosine"] == pytest.approx(np.mean(by_set))
    assert metrics["dev/accuracy"] == look["dev/accuracy"]
    assert not [name for name in metrics if name.startswith("sts/")], "a dev figure must not look like a test figure"


def test_training_opens_no_file_but_those_it_was_given(context: StageContext, tmp_path: Path) -> None:
    given = write_toy(tmp_path, "triplet", train=32)
    opened: set[str] = set()
    watching = [True]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.add(os.fspath(arguments[0]))

    sys.addaudithook(note)  # for good: Python takes none away
    teach(context, {**given, "epochs": 1})
    watching.clear()
    assert {name for name in opened if name.endswith(".tsv")} == {
        str(tmp_path / "triplet.train.tsv"), str(tmp_path / "triplet.dev.tsv"),
    }  # fmt: skip


# What a step learns from


@pytest.mark.parametrize("objective", ["softmax", "cosine", "triplet"])
def test_a_batch_gives_the_loss_of_its_items_one_by_one(context: StageContext, tmp_path: Path, objective: str) -> None:
    task = toy_task(context, write_toy(tmp_path, objective, train=24))
    task.model.eval()
    items = np.array([3, 17, 8, 11])
    batch = task.collate(items, 0)
    assert batch.counts == {objective: 4}
    loss = task.loss(task.model, batch)[objective].item()
    rows = (tmp_path / f"{objective}.train.tsv").read_text().splitlines()[1:]
    fields = [rows[item].split("\t") for item in items]
    assert loss == pytest.approx(sum(item_loss(task.model, objective, *field) for field in fields), rel=1e-4)


def item_loss(model: Teacher, objective: str, first: str, second: str, third: str) -> float:
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


def toy_task(context: StageContext, given: dict[str, Any]) -> TeacherTask:
    settings = TrainSettings.model_validate(given)
    data = TeacherData.read(settings, context)
    texts = data.train.sentences
    encoder = start_encoder(settings, texts, context)
    tokens = tokens_of(lambda a, b: texts[a:b], len(texts), encoder.tokenize, context.output / "tokens")
    head = start_head(settings, encoder, data.classes) if settings.objective == "softmax" else None
    return TeacherTask(Teacher(encoder, head, settings.dropout, settings.concatenation), settings, data, tokens)


@pytest.mark.parametrize("objective", ["cosine", "triplet"])
def test_micro_batches_keep_within_memory_however_uneven_the_sides(
    context: StageContext, tmp_path: Path, objective: str
) -> None:
    given = write_toy(tmp_path, objective, train=24)
    path = tmp_path / f"{objective}.train.tsv"
    header, *rows = path.read_text().splitlines()
    long = ["a dog runs here " * 3 + row if number % 3 == 0 else row for number, row in enumerate(rows)]
    path.write_text("\n".join([header, *long]) + "\n")
    task = toy_task(context, given)
    for device_tokens in (60, 200):
        pieces = micro_batches(np.arange(24), task.lengths, task.padded_lengths, device_tokens)
        sizes = [(len(piece), task.collate(piece, 0).inputs["input_ids"].numel()) for piece in pieces]
        assert sum(items for items, _ in sizes) == 24
        assert all(items == 1 or size <= device_tokens for items, size in sizes)


def test_a_base_with_a_default_prompt_learns_behind_it(
    tiny_encoder: Any, context: StageContext, tmp_path: Path
) -> None:
    given = write_toy(tmp_path, "cosine", train=24)
    texts = ["a dog runs here", "the cat sleeps there"]
    tiny_encoder("bert", texts, prompts=Prompts({"all": "the cat "}, "all")).save(tmp_path / "base")
    teach(context, {**given, "base": str(tmp_path / "base")})
    tokens = Tokens(context.work / "tokens")
    first = TeacherData.read(TrainSettings.model_validate(given), context).train.sentences[0]
    trained = SentenceEncoder.load(context.output / "model")
    assert trained.prompts.text() == "the cat "
    assert tokens.padded(np.array([0]), trained.pad_id)[0][0].tolist() == trained.tokenize(["the cat " + first])[0]


def test_dropout_is_on_the_sentence_vectors_and_only_while_training(context: StageContext, tmp_path: Path) -> None:
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


def test_a_single_class_is_refused_and_so_is_a_column_of_text(context: StageContext, tmp_path: Path) -> None:
    given = write_toy(tmp_path, "softmax", train=24)
    path = tmp_path / "softmax.train.tsv"
    path.write_text(path.read_text().replace("dissimilar", "similar"))
    with pytest.raises(RequestError, match="expected 2 to 100 classes, found 1"):
        teach(context, given)
    rows = [f"a dog\ta cat\tsomething private {number}" for number in range(101)]
    path.write_text("\n".join(["premise\thypothesis\tlabel", *rows]))
    with pytest.raises(RequestError, match="found 101") as raised:
        teach(context, given)
    assert "private" not in str(raised.value)


def test_dev_data_of_another_class_is_refused(context: StageContext, tmp_path: Path) -> None:
    given = write_toy(tmp_path, "softmax", train=24)
    path = tmp_path / "softmax.dev.tsv"
    path.write_text(path.read_text().replace("dissimilar", "DISSIMILAR"))
    with pytest.raises(RequestError, match=r"dev:.*dissimilar, similar.*found 1 other"):
        teach(context, given)


def test_a_head_is_saved_beside_the_encoder_and_gone_on_with(
    nli: tuple[dict[str, Any], StageContext, Metrics], context: StageContext
) -> None:
    given, first, _ = nli
    saved = {"base": str(first.output / "model"), "head": str(first.output / "head")}
    teach(context, {**given, **saved, "epochs": 1, "log_every": 1})
    begun_with_head = lines(context, "loss")[0]["loss"]
    teach(in_folder(context.output / "no-head"), {**given, "base": saved["base"], "epochs": 1, "log_every": 1})
    begun_without = lines(in_folder(context.output / "no-head"), "loss")[0]["loss"]
    assert begun_with_head < 0.1 < begun_without


def test_a_head_of_other_classes_or_another_size_is_refused(
    nli: tuple[dict[str, Any], StageContext, Metrics], context: StageContext
) -> None:
    given, first, _ = nli
    settings = TrainSettings.model_validate(
        {**given, "base": str(first.output / "model"), "head": str(first.output / "head")}
    )
    encoder = SentenceEncoder.load(first.output / "model")
    with pytest.raises(RequestError, match=r"trained for \['dissimilar', 'similar'\].*has \['no', 'yes'\]"):
        start_head(settings, encoder, ["no", "yes"])
    other_parts = settings.model_copy(update={"concatenation": ["|u-v|"]})
    with pytest.raises(RequestError, match=r"concatenation|\['u', 'v', '\|u-v\|'\]"):
        start_head(other_parts, encoder, ["dissimilar", "similar"])
    wider = SentenceEncoder(encoder.backbone, encoder.tokenizer, pooling=["mean", "max"])
    with pytest.raises(RequestError, match=r"head\.safetensors, found weight missing or of another shape"):
        start_head(settings, wider, ["dissimilar", "similar"])
    nowhere = settings.model_copy(update={"head": str(context.cache)})
    with pytest.raises(RequestError, match=r"expected head\.json and head\.safetensors"):
        start_head(nowhere, encoder, ["dissimilar", "similar"])


def test_sts_after_nli_starts_from_the_first_stages_model(
    nli: tuple[dict[str, Any], StageContext, Metrics], context: StageContext, tmp_path: Path
) -> None:
    given = {**write_toy(tmp_path, "cosine", train=64), "base": str(nli[1].output / "model")}
    start = start_encoder(TrainSettings.model_validate(given), [], context)
    for name, weight in SentenceEncoder.load(nli[1].output / "model").state_dict().items():
        assert torch.equal(start.state_dict()[name], weight)
    teach(context, {**given, "epochs": 1, "learning_rate": 1e-12})
    sentences = ["a dog runs here", "a mouse sings at home"]
    before, after = (SentenceEncoder.load(of.output / "model") for of in (nli[1], context))
    np.testing.assert_allclose(
        after.encode(sentences, precision="fp32"), before.encode(sentences, precision="fp32"), atol=1e-5
    )


def test_a_linear_layer_learns_and_is_saved(context: StageContext, tmp_path: Path) -> None:
    given = {**write_toy(tmp_path, "cosine", train=64), "linear": True, "epochs": 1}
    teach(context, given)
    learnt = SentenceEncoder.load(context.output / "model").projection
    begun = start_encoder(TrainSettings.model_validate(given), ["a dog"], context).projection
    assert learnt is not None and begun is not None
    assert not torch.allclose(learnt.linear.weight, begun.linear.weight, atol=1e-4)


# Resuming

STOPPED_ONCE = """
import json, os, signal, sys
from pathlib import Path
from bertrelay.errors import Stopped
from bertrelay.stage import StageContext
from bertrelay.training.loop import Training
from teachers.settings import TrainSettings
from teachers.train import run

folder, stop_at = Path(sys.argv[1]), int(sys.argv[2])
update = Training._update

def stopped_after(self):
    update(self)
    if self.state.step == stop_at:
        os.kill(os.getpid(), signal.SIGTERM)

Training._update = stopped_after
settings = TrainSettings.model_validate(json.loads((folder / "settings.json").read_text()))
try:
    run(settings, StageContext(folder / "output", folder / "cache"))
except Stopped as stopped:
    print(stopped)
    sys.exit(stopped.exit_code)
"""


def test_stopped_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    given = {**write_toy(tmp_path, "softmax", train=48), "epochs": 2, "dropout": 0.2, "evaluate_every": 3}
    given["base"] = {**NEW, "dropout": 0.1}
    stopped, whole = in_folder(tmp_path / "stopped"), in_folder(tmp_path / "whole")
    (tmp_path / "stopped" / "settings.json").write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_ONCE, tmp_path / "stopped", "5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "after step 5 of 12" in done.stdout
    assert not (stopped.output / "model").exists()
    metrics, expected = teach(stopped, given), teach(whole, given)
    assert digests(stopped.output / "model") == digests(whole.output / "model")
    assert digests(stopped.output / "head") == digests(whole.output / "head")
    timeless = {name for name in expected if name != "train_seconds"}
    assert {name: metrics[name] for name in timeless} == {name: expected[name] for name in timeless}
    assert [line["step"] for line in lines(stopped, "step")] == [line["step"] for line in lines(whole, "step")]


MakeEncoder = Callable[..., SentenceEncoder]

SENTENCES = ["A dog runs in the park.", "Two cats sleep.", "The bird sings in the tall tree.", "A child reads."]
SMALL = {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 80, "max_tokens": 24}


def start(context: StageContext, base: Any, sentences: list[str] = SENTENCES, **given: Any) -> SentenceEncoder:
    fields = {"base": base, "objective": "softmax", "train": [{"path": "train.tsv"}], **given}
    return start_encoder(TrainSettings.model_validate(fields), sentences, context)


@pytest.fixture
def saved(tiny_encoder: MakeEncoder, tmp_path: Path) -> Callable[..., str]:
    def save(**parts: Any) -> str:
        tiny_encoder("bert", SENTENCES, **parts).save(tmp_path / "base")
        return str(tmp_path / "base")

    return save


def weights(encoder: SentenceEncoder) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in encoder.parameters()])


def test_a_new_teacher_has_the_size_asked_for(context: StageContext) -> None:
    encoder = start(context, SMALL)
    config = encoder.backbone.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (
        "bert", 2, 16, 64,
    )  # fmt: skip
    assert (encoder.dim, encoder.max_tokens, encoder.pooling.modes) == (16, 24, ("mean",))


def test_a_new_teachers_word_pieces_come_from_its_own_corpus(context: StageContext) -> None:
    known = start(context, SMALL).tokenizer
    assert known.unk_token_id not in known("the tall bird reads").input_ids
    foreign = start(context, SMALL, ["Zwölf Boxkämpfer jagen Viktor quer."]).tokenizer
    assert foreign.unk_token_id in foreign("sphinx").input_ids  # no h in that corpus: another vocabulary


def test_the_seed_decides_a_new_teachers_weights_and_nothing_else_does(context: StageContext) -> None:
    torch.manual_seed(5)
    first = weights(start(context, SMALL, seed=1, linear=True))
    after = torch.rand(1)
    torch.manual_seed(6)
    torch.testing.assert_close(first, weights(start(context, SMALL, seed=1, linear=True)), rtol=0, atol=0)
    assert not torch.equal(first, weights(start(context, SMALL, seed=2, linear=True)))
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # the caller's generator is where it was


def test_a_base_keeps_its_pooling_unless_another_is_asked_for(context: StageContext, saved: Callable[..., str]) -> None:
    folder = saved(pooling=["cls"])
    assert start(context, folder).pooling.modes == ("cls",)
    both = start(context, folder, pooling=["mean", "max"])
    assert both.dim == 32
    assert SentenceEncoder.load(folder).pooling.modes == ("cls",)


def test_max_tokens_cuts_sentences(context: StageContext, saved: Callable[..., str]) -> None:
    [ids] = start(context, saved(), max_tokens=5).tokenize([SENTENCES[2]])
    assert len(ids) == 5


def test_a_linear_layer_of_equal_size_survives_saving(context: StageContext, tmp_path: Path) -> None:
    encoder = start(context, SMALL, linear=True, pooling=["mean", "max"])
    assert encoder.projection is not None
    assert encoder.projection.linear.weight.shape == (32, 32)
    encoder.save(tmp_path / "model")
    assert (tmp_path / "model" / "2_Dense" / "model.safetensors").is_file()
    again = SentenceEncoder.load(tmp_path / "model")
    np.testing.assert_array_equal(
        again.encode(SENTENCES, precision="fp32"), encoder.eval().encode(SENTENCES, precision="fp32")
    )


def test_the_linear_layer_of_a_base_is_gone_on_with(context: StageContext, saved: Callable[..., str]) -> None:
    torch.manual_seed(3)
    learnt = Projection(16, 16)
    continued = start(context, saved(projection=learnt), linear=True, seed=9)
    assert continued.projection is not None
    assert torch.equal(continued.projection.linear.weight, learnt.linear.weight)
