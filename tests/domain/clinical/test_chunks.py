import random
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.model.new import train_wordpiece
from domain.clinical.chunks import (
    Chunker,
    _word_starts,
    chunk_tokens,
    subwords_per_word,
    unknown_shares,
    warn_of_unknown,
)
from domain.clinical.settings import ChunkSettings
from domain.text.sentences import sentence_spans

SENTENCES = [
    "He walked the ward at 4 p.m. without pain.",
    "T 98.6, BP 92/58 on room air.",
    "Started on i.v. furosemide at 10 mg/hr by Dr. Whitlock.",
    "No fever.",
]


def wordpiece():
    return train_wordpiece(SENTENCES, 120, max_tokens=64)


def byte_level():
    """Bytes as tokens: a character that is not ASCII is two to four of them, as in RoBERTa's and GPT's vocabularies."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: row for row, piece in enumerate(["<s>", "</s>", *alphabet])}
    rules = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    rules.normalizer = normalizers.NFKC()  # one character may become several
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    rules.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=rules, bos_token="<s>", eos_token="</s>")


WORDPIECE = wordpiece()
TOKENIZERS = {"wordpiece": WORDPIECE, "bytes": byte_level()}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def chunker(tokenizer, **settings):
    return Chunker(tokenizer, ChunkSettings(**settings))


def pieces(text, chunks):
    return [text[chunk.start : chunk.end] for chunk in chunks.used]


def unicode_text(draw):
    """Random words: of the vocabulary, of any script, control characters, and characters that normalise to several."""
    strange = ["\u200b", "\x07", "ﷺ", "ǆ", "😷😷😷", "e\u0301\u0323", "患者は", "\u2028", "\x00", "ﬁ", "\ud7ff", "￼"]
    words = [*" ".join(SENTENCES).split(), *strange]
    words += [chr(draw.choice([draw.randrange(1, 0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(10)]
    return "".join(draw.choice(words) + draw.choice([" ", "", "\n", "\n\n", ". ", "  "]) for _ in range(120))


@pytest.mark.parametrize("seed", range(6))
def test_chunks_give_back_the_text_exactly_and_its_tokens_with_special_ones_around_them(tokenizer, seed):
    draw = random.Random(seed)
    text, most = unicode_text(draw), draw.randrange(8, 80)
    chunks = chunker(tokenizer, max_tokens=most)(text)
    assert "".join(pieces(text, chunks)) == text
    assert chunks.lost_chunks == 0
    before, _, after = tokenizer.backend_tokenizer.encode("a").ids
    assert all((chunk.ids[0], chunk.ids[-1], len(chunk.ids) <= most) == (before, after, True) for chunk in chunks.used)
    alone = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    begins_with_space = tokenizer.decode([alone[0]]) == " "
    ids = np.concatenate([chunk.ids[1:-1] for chunk in chunks.used]).tolist()
    assert ids == alone or (not begins_with_space and ids[1:] == alone)  # byte-level rules begin words with a space


@pytest.mark.parametrize("overlap", [1, 7, 30])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_that_overlap_lose_nothing_and_repeat_no_more_than_asked(tokenizer, seed, overlap):
    text = unicode_text(random.Random(seed))
    chunks = chunker(tokenizer, max_tokens=60, overlap=overlap)(text).used
    assert (chunks[0].start, chunks[-1].end) == (0, len(text))
    for one, following in pairwise(chunks):
        assert one.start <= following.start <= one.end <= following.end
        repeated = tokenizer.backend_tokenizer.encode(text[following.start : one.end], add_special_tokens=False)
        assert len(repeated.ids) <= overlap + 4  # cut out of its word, a piece may be other pieces
    alone = sum(len(chunk.ids) - 2 for chunk in chunker(tokenizer, max_tokens=60)(text).used)
    assert sum(len(chunk.ids) - 2 for chunk in chunks) <= alone + overlap * (len(chunks) - 1)


def test_a_chunk_begins_and_ends_with_a_sentence_and_a_longer_sentence_is_cut_at_a_token():
    long = "Pain " * 40 + "."
    text = f"No fever. No fever. No fever. {long} No fever."
    tokens = len(WORDPIECE("No fever.", add_special_tokens=False).input_ids)
    chunks = chunker(WORDPIECE, max_tokens=2 * tokens + 3)(text)
    cut = pieces(text, chunks)
    assert cut[:2] == ["No fever. No fever. ", "No fever. "]
    assert cut[2].startswith("Pain Pain")
    assert {len(chunk.ids) for chunk in chunks.used[2:-1]} == {2 * tokens + 3}
    assert cut[-1].endswith("No fever.")
    short, settings = " ".join(["No fever."] * 12), {"max_tokens": 4 * tokens + 2, "overlap": 2 * tokens - 1}
    assert pieces(short, chunker(WORDPIECE, **settings)(short))[:2] == ["No fever. " * 4] * 2


def test_every_sentence_that_fits_is_whole_in_some_chunk_whatever_the_overlap(tokenizer):
    draw = random.Random(3)
    text = " ".join(draw.choice(SENTENCES) for _ in range(60))
    longest = max(len(tokenizer(sentence, add_special_tokens=False).input_ids) for sentence in SENTENCES)
    for overlap in (0, 5, longest // 2):
        used = chunker(tokenizer, max_tokens=longest + 4, overlap=overlap)(text).used
        for start, end in sentence_spans(text):
            assert any(chunk.start <= start and end <= chunk.end for chunk in used)


def test_what_max_chunks_leaves_out_is_counted():
    text = " ".join(["No fever."] * 10)
    every = chunker(WORDPIECE, max_tokens=16)(text)
    some = chunker(WORDPIECE, max_tokens=16, max_chunks=2)(text)
    assert pieces(text, some) == pieces(text, every)[:2]
    assert some.lost_chunks == len(every.used) - 2 > 0


def test_a_text_with_nothing_to_read_has_no_chunk(tokenizer):
    assert [chunker(tokenizer)(text).used for text in ("", " \n ", "\t")] == [[]] * 3
    assert chunker(WORDPIECE)(" \u200b\n").used == []


def test_many_texts_are_cut_as_each_alone(tokenizer):
    texts = [unicode_text(random.Random(seed)) for seed in range(40)] + [""]
    cut = chunker(tokenizer, max_tokens=32, overlap=6)
    assert [pieces(*pair) for pair in zip(texts, cut.of_texts(iter(texts)), strict=True)] == [
        pieces(text, cut(text)) for text in texts
    ]


def test_a_language_whose_letters_alone_are_known_has_many_subwords_a_word_and_no_unknown_token(capsys):
    letters = [mark + letter for mark in ("", "##") for letter in "пациентболь"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "fever", "##s", ".", "患", "者", *letters]
    rules = Tokenizer(models.WordPiece({name: row for row, name in enumerate(dict.fromkeys(names))}, unk_token="[UNK]"))
    rules.normalizer, rules.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    texts = ["no fever.", "no fevers.", "пациент боль", "患者", ""]
    cut = chunker(tokenizer, max_tokens=8)
    tokens = chunk_tokens(texts, cut)
    shares, subwords = unknown_shares(tokens, 5, cut)[0], subwords_per_word(tokens, 5, cut)
    assert shares[:4].tolist() == [0, 0, 0, 0]
    assert subwords[:4].tolist() == [1, 4 / 3, 11 / 2, 1] and np.isnan(subwords[4])  # 7 and 4 letters, two words
    warn_of_unknown(shares, subwords)
    assert "words are more than 2.0 subwords on average in 1 of 5 admissions" in capsys.readouterr().err
    german = np.array([1.24, 1.44, 1.86])  # of BERT's vocabulary: English reports, the most of 99 %, German
    warn_of_unknown(np.zeros(3), german, 1.24)
    warning = "words are more than 1.7 subwords on average (in the training notes 1.2) in 1 of 3 admissions"
    assert warning in capsys.readouterr().err


def test_subwords_are_counted_in_vocabularies_that_mark_the_beginning_of_a_word():
    for marker in ("Ġ", "▁"):
        starts = _word_starts({"<s>": 0, f"{marker}fever": 1, "s": 2, ".": 3, "患": 4, marker: 5})
        assert starts.tolist() == [True, True, False, True, True, True]
    assert _word_starts({}).all()


def test_special_tokens_that_fill_a_chunk_are_reported():
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> <s> <s> <s> <s> <s> <s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    with pytest.raises(RequestError, match=r"max_tokens: .*8 special tokens, found 8"):
        chunker(tokenizer, max_tokens=8)
