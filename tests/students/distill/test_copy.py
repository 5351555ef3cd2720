"""Students with the teacher's layers under a new vocabulary."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from students.distill.start import copy_of

SENTENCES = ["a dog runs", "cats run", "the dogs and a cat sleep near the old station", "sleep"]
PIECES = ["▁a", "▁dog", "▁run", "s", "▁cat", "▁the", "▁and", "▁sleep", "▁near", "▁old", "▁station"]
WHOLE_WORDS = [f"▁{word}" for word in sorted({word for sentence in SENTENCES for word in sentence.split()})]
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def unigram(pieces):
    """XLM-R's tokenizer over just these pieces."""
    special = [(name, 0.0) for name in list(ROLES.values())[:4]]
    scored = [*special, *((piece, -1.0) for piece in pieces), ("<mask>", 0.0)]
    rules = Tokenizer(models.Unigram(scored, unk_id=3))
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
        make_tokenizer = word_piece if kind == "bert" else unigram
        return tiny_encoder(kind, tokenizer or make_tokenizer(PIECES), sizes=sizes, pooling=["cls", "mean"])

    return make


def vectors(encoder, sentences=SENTENCES):
    return encoder.eval().encode(sentences, precision="fp32")


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
