"""Layers copied, layers left out, and a vocabulary that begins with the teacher's meanings."""

import shutil

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from students.distill import start as module
from students.distill.settings import DistillSettings
from students.distill.start import copy_of, soften, start_student
from students.distill.targets import fill_targets
from students.teacher import OpenedTeacher

NEW = {"layers": 2, "dim": 24, "heads": 2, "vocabulary": 150, "max_tokens": 32}
COPY = {"layers_of": "teacher", "vocabulary": 150}


@pytest.fixture
def corpus(toy, tmp_path):
    return toy.corpus(tmp_path / "corpora")


@pytest.fixture
def make_teacher(tiny_encoder, toy):
    return lambda **parts: tiny_encoder("bert", [english for english, *_ in toy.train], **parts)


def settings(base, **given):
    source = {"path": "train.tsv", "others": {"de": "de"}}
    return DistillSettings.model_validate({"teacher": "./teacher", "base": base, "parallel": [source], **given})


def begin(base, corpus, teacher, context, **given):
    shutil.rmtree(context.work / "start", ignore_errors=True)  # of another student
    teacher = OpenedTeacher(teacher)
    targets = fill_targets(teacher, corpus, context, ComputePrecision.FP32)
    return start_student(settings(base, **given), corpus, teacher, targets, context, ComputePrecision.FP32)[0], targets


def test_sinusoids_begin_where_an_xlmr_begins_to_count(corpus, make_teacher, context):
    student, _ = begin({**NEW, "positions": "sinusoidal"}, corpus, make_teacher(normalize=True), context)
    table = student.backbone.get_parameter("embeddings.position_embeddings.weight")
    expected = torch.empty(32, 24)
    create_sinusoidal_embeddings(32, 24, expected)
    assert table.shape == (34, 24)  # two that no token has
    assert torch.allclose(table[2:] / table[2, 1], expected, atol=1e-5)  # the cosine of 0 is 1


@pytest.mark.parametrize("kind", ["new", "pretrained", "new of another scale"])
def test_the_projection_begins_as_the_ridge_regression_from_the_pooled_vectors(
    corpus, make_teacher, tiny_encoder, context, tmp_path, kind
):
    """Of a pretrained base the singular values are taken to the power 1/4, at the scale of least error."""
    base, penalty = NEW, 1.0
    if kind == "pretrained":
        base, penalty = str(tmp_path / "base"), 0.01
        sizes = {"hidden_size": 24, "num_attention_heads": 2}
        tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), sizes=sizes).save(base)
    student, targets = begin(base, corpus, make_teacher(normalize=not kind.endswith("scale")), context)
    bare = SentenceEncoder(student.backbone, student.tokenizer, max_tokens=student.max_tokens)
    pooled = bare.encode(corpus.texts(0, len(corpus)), precision="fp32").astype(np.float64)
    wanted = targets.vectors[corpus.targets[:]].astype(np.float64)
    share = corpus.weights[:] / corpus.weights[:].sum()
    centre, wanted_centre = share @ pooled, share @ wanted
    x, y = (np.sqrt(share)[:, None] * part for part in (pooled - centre, wanted - wanted_centre))
    # Least squares with the penalty as further rows, solved by numpy.
    more = np.sqrt(penalty * np.sum(x**2) / 24) * np.eye(24)
    solution, *_ = np.linalg.lstsq(np.concatenate([x, more]), np.concatenate([y, np.zeros((24, 16))]), rcond=None)
    weight = solution.T  # (dim, pooled)
    if kind == "pretrained":
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        softened = left @ np.diag(values**0.25) @ right
        scale, *_ = np.linalg.lstsq((x @ softened.T).reshape(-1, 1), y.reshape(-1), rcond=None)
        weight = scale * softened
    assert student.normalize == targets.is_unit == (not kind.endswith("scale"))
    found, bias = student.projection.linear, wanted_centre - weight @ centre
    np.testing.assert_allclose(found.weight.detach(), weight, atol=1e-4 * abs(weight).max())
    np.testing.assert_allclose(found.bias.detach(), bias, atol=1e-4 * abs(bias).max())


def test_softening_evens_out_what_the_corpus_hardly_shows():
    """The example of `fitted_projection`."""
    cross = np.diag([16.0, 1.0])
    np.testing.assert_allclose(soften(cross, np.eye(2), cross), np.diag([13.2, 6.6]))


def test_a_projection_of_the_base_is_replaced_and_not_learnt_on_top_of(
    corpus, make_teacher, tiny_encoder, context, tmp_path
):
    texts = corpus.texts(0, len(corpus))
    dense = Projection(16, 8, activation=nn.Tanh())
    tiny_encoder("xlm-roberta", texts, projection=dense).save(tmp_path / "base")
    student, _ = begin(str(tmp_path / "base"), corpus, make_teacher(), context)
    assert (student.projection.linear.in_features, student.dim) == (16, 16)


# What a student is made of


def test_a_new_student_has_its_size_pieces_of_every_language_and_a_projection(corpus, make_teacher, context, toy):
    student, _ = begin(NEW, corpus, make_teacher(normalize=True), context)
    config = student.backbone.config
    sizes = (config.model_type, config.num_hidden_layers, config.hidden_size, config.intermediate_size)
    assert sizes == ("xlm-roberta", 2, 24, 96)
    assert len(student.tokenizer) <= 150
    unknown = student.tokenizer.unk_token_id
    assert not any(unknown in ids for row in toy.train for ids in student.tokenize(row))
    assert student.normalize and (student.pooled_dim, student.dim) == (24, 16)
    assert all(weight.requires_grad for weight in student.projection.parameters())


def test_a_pretrained_base_keeps_its_weights_and_pooling_and_may_lose_layers(
    corpus, make_teacher, tiny_encoder, context, tmp_path
):
    base = tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), layers=4, pooling=["cls"])
    base.save(tmp_path / "base")
    given = {"layers": 2, "dropout": 0.25, "max_tokens": 7}
    student, _ = begin(str(tmp_path / "base"), corpus, make_teacher(normalize=True), context, **given)
    old, new = base.backbone.state_dict(), student.backbone.state_dict()
    name = "encoder.layer.{}.output.dense.weight"
    same = [[torch.equal(new[name.format(kept)], old[name.format(layer)]) for layer in range(4)] for kept in (0, 1)]
    first, second = (places.index(True) for places in same)
    assert first < second
    assert student.backbone.config.num_hidden_layers == 2
    assert (student.pooling.modes, student.max_tokens) == (("cls",), 7)
    assert {part.p for part in student.backbone.modules() if isinstance(part, nn.Dropout)} == {0.25}


def test_of_a_large_corpus_the_vocabulary_reads_sentences_evenly_spread(corpus, monkeypatch):
    texts = corpus.texts(0, len(corpus))
    assert list(module._sample(corpus)) == texts
    monkeypatch.setattr(module, "VOCABULARY_SENTENCES", 150)
    assert list(module._sample(corpus)) == texts[::4]  # 600 sentences


SENTENCES = ["a dog runs", "cats run", "the dogs and a cat sleep near the old station", "sleep"]
PIECES = ["▁a", "▁dog", "▁run", "s", "▁cat", "▁the", "▁and", "▁sleep", "▁near", "▁old", "▁station"]
WHOLE_WORDS = [f"▁{word}" for word in sorted({word for sentence in SENTENCES for word in sentence.split()})]
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def unigram(pieces):
    """XLM-R's tokenizer over just these pieces."""
    known = [*((name, 0.0) for name in list(ROLES.values())[:4]), *((piece, -1.0) for piece in pieces), ("<mask>", 0.0)]
    rules = Tokenizer(models.Unigram(known, unk_id=3))
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    rules.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>", **ROLES)


def word_piece(pieces):
    """BERT's tokenizer over just these pieces."""
    roles = {role: f"[{role[:3].upper()}]" for role in ("pad_token", "unk_token", "cls_token", "sep_token")}
    roles["mask_token"] = "[MASK]"
    names = [*roles.values(), *(piece[1:] if piece.startswith("▁") else f"##{piece}" for piece in pieces)]
    rules = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=rules, **roles)


@pytest.fixture
def teacher_of(tiny_encoder, byte_level):
    """A teacher of a kind, over just PIECES or with another tokenizer."""
    sizes = {"max_position_embeddings": 20, "hidden_act": "relu", "layer_norm_eps": 1e-3}

    def make(kind, tokenizer=None):
        if kind == "roberta":
            tokenizer = tokenizer or byte_level(SENTENCES, prefix=True)
        own = word_piece if kind == "bert" else unigram
        return tiny_encoder(kind, tokenizer or own(PIECES), sizes=sizes, pooling=["cls", "mean"])

    return make


def vectors(encoder, sentences=SENTENCES):
    return encoder.eval().encode(sentences, precision="fp32")


# Copies


@pytest.mark.parametrize(
    ("kind", "pieces", "longest"), [("bert", PIECES, 20), ("roberta", WHOLE_WORDS, 18), ("xlm-roberta", PIECES, 18)]
)
def test_a_copy_whose_pieces_are_the_teachers_gives_its_vectors_and_reads_as_far(
    kind, pieces, longest, teacher_of, tmp_path
):
    teacher, texts = teacher_of(kind), [*SENTENCES, " ".join(SENTENCES * 3)]
    student = copy_of(teacher, unigram(pieces[::-1]))
    assert student.backbone.config.model_type == "xlm-roberta"
    assert student.tokenize(SENTENCES) != teacher.tokenize(SENTENCES)  # other ids for the same pieces
    assert len(student.tokenize(texts)[-1]) == student.max_tokens == teacher.max_tokens == longest
    student.save(tmp_path / "model")
    for copied in (student, SentenceEncoder.load(tmp_path / "model")):
        np.testing.assert_allclose(vectors(copied, texts), vectors(teacher, texts), atol=1e-5)


def rows_of(teacher, *new_pieces):
    """The vectors that a copy begins with for `new_pieces`."""
    student = copy_of(teacher, unigram(new_pieces))
    table = student.backbone.get_input_embeddings().weight.detach().numpy()
    return [table[student.tokenizer.convert_tokens_to_ids(piece)] for piece in new_pieces]


def old_row(teacher, piece):
    table = teacher.backbone.get_input_embeddings().weight.detach().numpy()
    assert piece in teacher.tokenizer.get_vocab()
    return table[teacher.tokenizer.convert_tokens_to_ids(piece)]


def test_a_new_tokens_vector_is_the_mean_of_the_teachers_pieces(teacher_of):
    bert = teacher_of("bert")
    dogs, *others = rows_of(bert, "▁dogs", "s", "▁old", "▁ß", "▁")
    np.testing.assert_allclose(dogs, (old_row(bert, "dog") + old_row(bert, "##s")) / 2, rtol=1e-6)
    for new, piece in zip(others, ["##s", "old", "[UNK]", "[UNK]"], strict=True):
        np.testing.assert_array_equal(new, old_row(bert, piece))


def test_case_and_the_space_before_a_word_are_as_the_teacher_has_them(tiny_encoder, teacher_of, byte_level):
    teachers = {
        "cased": (teacher_of("bert", word_piece(["▁a", "▁A", "A", "a"])), {"A": "##A", "▁A": "A"}),
        "uncased": (tiny_encoder("bert", ["abab baab abba"]), {"▁Á": "a", "À": "##a"}),
        "bytes": (teacher_of("roberta", byte_level(SENTENCES)), {"▁dog": "Ġdog", "s": "s"}),
    }
    for teacher, pieces in teachers.values():
        np.testing.assert_array_equal(rows_of(teacher, *pieces), [old_row(teacher, old) for old in pieces.values()])


@pytest.mark.parametrize("kind", ["distilbert", "mpnet", "albert"])
def test_layers_of_another_kind_are_not_copied(tiny_encoder, kind):
    with pytest.raises(RequestError, match=f"BERT, RoBERTa or XLM-R teacher, found '{kind}'"):
        copy_of(tiny_encoder(kind, SENTENCES), unigram(PIECES))


def test_a_copy_that_learns_leaves_its_teacher_as_it_is(teacher_of):
    bert = teacher_of("bert")
    teacher = SentenceEncoder(bert.backbone, bert.tokenizer, projection=Projection(16, 16)).eval()
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    student = copy_of(teacher, unigram(PIECES))
    np.testing.assert_allclose(vectors(student), vectors(teacher), atol=1e-5)  # the projection comes along
    with torch.no_grad():
        for weight in student.parameters():
            weight.add_(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())


def test_a_start_is_made_once_and_read_again_bit_for_bit(corpus, make_teacher, tiny_encoder, context, toy, monkeypatch):
    base = context.cache.folder / "base"
    tiny_encoder("xlm-roberta", [text for row in toy.train for text in row]).save(base)
    chosen, teacher = settings(str(base), trim_vocabulary=True, layers=1, dropout=0.3), OpenedTeacher(make_teacher())
    targets = fill_targets(teacher, corpus, context, ComputePrecision.FP32)
    first, sizes = start_student(chosen, corpus, teacher, targets, context, ComputePrecision.FP32)
    monkeypatch.setattr("students.distill.start.trim_vocabulary", None)  # would fail if it were called
    again, same_sizes = start_student(chosen, corpus, teacher, targets, context, ComputePrecision.FP32)
    assert sizes == same_sizes and sizes["layers/after"] == 1
    assert first.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert first.tokenize(["two cats"]) == again.tokenize(["two cats"])
    assert {module.p for module in again.backbone.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
