"""Batches of a teacher's training: their loss, their size and their dropout."""

import numpy as np
import pytest
import torch
from toy_language import write_toy

from bertrelay.data.tokens import store_tokens
from bertrelay.device import ComputePrecision
from bertrelay.training.batches import micro_batches
from teachers.model import Teacher, start_head
from teachers.settings import TrainSettings
from teachers.train import TeacherData, TeacherTask, start_encoder


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


def toy_task(context, fields):
    settings = TrainSettings.model_validate(fields)
    data = TeacherData.read(settings, context)
    texts = data.train.sentences
    encoder = start_encoder(settings, texts, context)
    tokens = store_tokens(lambda a, b: texts[a:b], len(texts), encoder.tokenize, context.output / "tokens")
    head = start_head(settings, encoder, data.classes) if settings.objective == "softmax" else None
    return TeacherTask(
        Teacher(encoder, head, settings.dropout, settings.concatenation), settings, data, tokens, ComputePrecision.FP32
    )


def test_micro_batches_fit_the_memory_with_sentences_of_unequal_length(context, tmp_path):
    fields = write_toy(tmp_path, "triplet", train=24)
    path = tmp_path / "triplet.train.tsv"
    header, *rows = path.read_text().splitlines()
    long = ["a dog runs here " * 3 + row if number % 3 == 0 else row for number, row in enumerate(rows)]
    path.write_text("\n".join([header, *long]) + "\n")
    task = toy_task(context, fields)
    for device_tokens in (60, 200):
        parts = micro_batches(np.arange(24), task.lengths, task.padded_lengths, device_tokens)
        sizes = [(len(part), task.collate(part, 0).inputs["input_ids"].numel()) for part in parts]
        assert sum(items for items, _ in sizes) == 24
        assert all(items == 1 or size <= device_tokens for items, size in sizes)


def test_dropout_is_on_the_sentence_vectors_and_only_while_training(context, tmp_path):
    task = toy_task(context, {**write_toy(tmp_path, "cosine", train=24), "dropout": 0.5})
    batch = task.collate(np.arange(8), 0)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    whole = task.model.eval()(ids, mask)
    dropped = task.model.train()(ids, mask)
    nonzero = dropped != 0
    assert 0.3 < nonzero.float().mean() < 0.7
    torch.testing.assert_close(dropped[nonzero], 2 * whole[nonzero])
    vectors = task.model.encoder.encode(["a dog runs here"] * 2, precision="fp32")
    assert np.all(vectors != 0), "the encoder has none of it"
