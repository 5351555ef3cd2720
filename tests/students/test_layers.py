"""Layers copied, layers left out, and a vocabulary that begins with the teacher's meanings."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.errors import RequestError
from students.build import copy_of, keep_layers, set_dropout

MakeEncoder = Callable[..., SentenceEncoder]

SENTENCES = ["a dog runs", "cats run", "the dogs and a cat sleep near the old station", "sleep"]
PIECES = ["▁a", "▁dog", "▁run", "s", "▁cat", "▁the", "▁and", "▁sleep", "▁near", "▁old", "▁station"]
WHOLE_WORDS = [f"▁{word}" for word in sorted({word for sentence in SENTENCES for word in sentence.split()})]
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def unigram(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """XLM-R's tokenizer over just these pieces."""
    known = [*((name, 0.0) for name in list(ROLES.values())[:4]), *((piece, -1.0) for piece in pieces), ("<mask>", 0.0)]
    rules = Tokenizer(models.Unigram(known, unk_id=3))
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    rules.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>", **ROLES)


def word_piece(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
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


def byte_level(prefix: bool = True) -> PreTrainedTokenizerFast:
    """RoBERTa's tokenizer, whose pieces are whole words that begin with a space."""
    rules = Tokenizer(models.BPE(unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    special = [*list(ROLES.values())[:4], "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rules.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    )
    rules.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>", **ROLES)


def teacher_of(kind: str, tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        hidden_act="relu",
        layer_norm_eps=1e-3,
    )
    network = AutoModel.from_config(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return SentenceEncoder(network, tokenizer, pooling=["cls", "mean"]).eval()


TEACHERS = {
    "bert": (lambda: word_piece(PIECES), PIECES),
    "roberta": (byte_level, WHOLE_WORDS),
    "xlm-roberta": (lambda: unigram(PIECES), PIECES),
}


@pytest.fixture
def bert() -> SentenceEncoder:
    return teacher_of("bert", word_piece(PIECES))


def vectors(encoder: SentenceEncoder, sentences: Sequence[str] = SENTENCES) -> np.ndarray:
    return encoder.eval().encode(sentences, precision="fp32")


# Copies


@pytest.mark.parametrize("kind", TEACHERS)
def test_a_copy_whose_pieces_are_the_teachers_gives_the_teachers_vectors(kind: str, tmp_path: Path) -> None:
    make_tokenizer, pieces = TEACHERS[kind]
    teacher = teacher_of(kind, make_tokenizer())
    student = copy_of(teacher, unigram(pieces[::-1]))
    assert student.backbone.config.model_type == "xlm-roberta"
    assert student.tokenize(SENTENCES) != teacher.tokenize(SENTENCES)  # other ids for the same pieces
    np.testing.assert_allclose(vectors(student), vectors(teacher), atol=1e-5)
    student.save(tmp_path / "model")
    np.testing.assert_allclose(vectors(SentenceEncoder.load(tmp_path / "model")), vectors(teacher), atol=1e-5)


@pytest.mark.parametrize("kind", TEACHERS)
def test_a_copy_reads_as_far_as_its_teacher(kind: str) -> None:
    make_tokenizer, pieces = TEACHERS[kind]
    teacher = teacher_of(kind, make_tokenizer())
    student = copy_of(teacher, unigram(pieces))
    assert student.max_tokens == teacher.max_tokens == (20 if kind == "bert" else 18)
    long = [" ".join(SENTENCES * 3)]
    assert len(student.tokenize(long)[0]) == student.max_tokens
    np.testing.assert_allclose(vectors(student, long), vectors(teacher, long), atol=1e-5)


def rows_of(teacher: SentenceEncoder, *new_pieces: str) -> list[np.ndarray]:
    """The vectors that a copy begins with for `new_pieces`."""
    student = copy_of(teacher, unigram(new_pieces))
    table = student.backbone.get_input_embeddings().weight.detach().numpy()
    return [table[student.tokenizer.convert_tokens_to_ids(piece)] for piece in new_pieces]


def old_row(teacher: SentenceEncoder, piece: str) -> np.ndarray:
    table = teacher.backbone.get_input_embeddings().weight.detach().numpy()
    assert piece in teacher.tokenizer.get_vocab()
    return table[teacher.tokenizer.convert_tokens_to_ids(piece)]


def test_a_new_tokens_vector_is_the_mean_of_the_teachers_pieces(bert: SentenceEncoder) -> None:
    dogs, inside, start, foreign, space = rows_of(bert, "▁dogs", "s", "▁old", "▁ß", "▁")
    np.testing.assert_allclose(dogs, (old_row(bert, "dog") + old_row(bert, "##s")) / 2, rtol=1e-6)
    np.testing.assert_allclose(inside, old_row(bert, "##s"))
    np.testing.assert_allclose(start, old_row(bert, "old"))
    np.testing.assert_allclose(foreign, old_row(bert, "[UNK]"))
    np.testing.assert_allclose(space, old_row(bert, "[UNK]"))


def test_special_tokens_begin_as_their_counterparts(bert: SentenceEncoder) -> None:
    student = copy_of(bert, unigram(PIECES))
    table = student.backbone.get_input_embeddings().weight.detach().numpy()
    pairs = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
    for new, old in pairs.items():
        np.testing.assert_array_equal(table[student.tokenizer.convert_tokens_to_ids(new)], old_row(bert, old))


def test_a_cased_teacher_tells_capitals_apart_and_an_uncased_one_does_not(tiny_encoder: MakeEncoder) -> None:
    cased = teacher_of("bert", word_piece(["▁a", "▁A", "A", "a"]))
    np.testing.assert_array_equal(rows_of(cased, "A")[0], old_row(cased, "##A"))
    np.testing.assert_array_equal(rows_of(cased, "▁A")[0], old_row(cased, "A"))
    uncased = tiny_encoder("bert", ["abab baab abba"])
    np.testing.assert_array_equal(rows_of(uncased, "▁Á", "À")[1], old_row(uncased, "##a"))
    np.testing.assert_array_equal(rows_of(uncased, "▁Á")[0], old_row(uncased, "a"))


def test_byte_level_pieces_are_met_with_their_space() -> None:
    roberta = teacher_of("roberta", byte_level(prefix=False))  # "dog" and " dog" are two pieces
    start, inside = rows_of(roberta, "▁dog", "s")
    np.testing.assert_array_equal(start, old_row(roberta, "Ġdog"))
    np.testing.assert_array_equal(inside, old_row(roberta, "s"))


@pytest.mark.parametrize("kind", ["distilbert", "mpnet", "albert"])
def test_layers_of_another_kind_are_not_copied(tiny_encoder: MakeEncoder, kind: str) -> None:
    with pytest.raises(RequestError, match=f"BERT, RoBERTa or XLM-R teacher, found '{kind}'"):
        copy_of(tiny_encoder(kind, SENTENCES), unigram(PIECES))


def test_a_copy_that_learns_leaves_its_teacher_as_it_is(bert: SentenceEncoder) -> None:
    teacher = SentenceEncoder(bert.backbone, bert.tokenizer, projection=Projection(16, 16)).eval()
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    student = copy_of(teacher, unigram(PIECES))
    np.testing.assert_allclose(vectors(student), vectors(teacher), atol=1e-5)  # the projection comes along
    with torch.no_grad():
        for weight in student.parameters():
            weight.add_(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())


# Fewer layers

STACKED = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"]


def stack(encoder: SentenceEncoder) -> list[torch.nn.Module]:
    return next(list(part) for part in encoder.backbone.modules() if isinstance(part, torch.nn.ModuleList))


@pytest.mark.parametrize("kind", STACKED)
def test_kept_layers_are_the_first_the_last_and_some_between(
    tiny_encoder: MakeEncoder, tmp_path: Path, kind: str
) -> None:
    encoder = tiny_encoder(kind, SENTENCES, layers=7)
    layers = stack(encoder)
    keep_layers(encoder.backbone, 3)
    assert [layers.index(layer) for layer in stack(encoder)] == [0, 3, 6]
    encoder.save(tmp_path / "model")
    again = SentenceEncoder.load(tmp_path / "model")
    assert again.backbone.config.num_hidden_layers == 3
    np.testing.assert_array_equal(vectors(again), vectors(encoder))


def test_a_shortened_network_computes_what_its_layers_do_in_a_row(tiny_encoder: MakeEncoder) -> None:
    encoder = tiny_encoder("bert", SENTENCES, layers=4)
    ids = torch.tensor(encoder.tokenize(SENTENCES[:1]))
    hidden = encoder.backbone.embeddings(ids)
    for index in (0, 3):
        output = encoder.backbone.encoder.layer[index](hidden)
        hidden = output[0] if isinstance(output, tuple) else output
    keep_layers(encoder.backbone, 2)
    torch.testing.assert_close(encoder.backbone(ids).last_hidden_state, hidden)


def test_layers_that_are_shared_or_not_there_are_not_dropped(tiny_encoder: MakeEncoder) -> None:
    with pytest.raises(RequestError, match="cannot drop layers of a 'albert' network"):
        keep_layers(tiny_encoder("albert", SENTENCES).backbone, 1)
    with pytest.raises(RequestError, match="at most the 2 of the base, found 3"):
        keep_layers(tiny_encoder("bert", SENTENCES).backbone, 3)


# Dropout


@pytest.mark.parametrize("kind", [*STACKED, "albert"])
def test_dropout_is_everywhere_or_nowhere_as_set(tiny_encoder: MakeEncoder, kind: str) -> None:
    encoder = tiny_encoder(kind, SENTENCES)
    own = encoder.backbone.config.to_dict()
    ids = torch.tensor(encoder.tokenize(SENTENCES[:1]))
    whole = encoder(ids, torch.ones_like(ids))
    set_dropout(encoder.backbone, 0.0)
    torch.testing.assert_close(encoder.train()(ids, torch.ones_like(ids)), whole)
    set_dropout(encoder.backbone, 0.5)
    assert not torch.allclose(encoder.train()(ids, torch.ones_like(ids)), whole, atol=1e-2)
    assert encoder.backbone.config.to_dict() == own
