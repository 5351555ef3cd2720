"""Vocabularies learnt from a corpus: WordPiece as BERT has it, unigram pieces as XLM-R has them.

SentencePiece learns the pieces, because it gives the same ones for the same corpus every time (the trainers of
`tokenizers` walk through hash maps in random order); `tokenizers` then cuts text with them.
"""

import io
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError

BERT_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLMR_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as XLM-R has them; <mask> comes last
WORD_START = "▁"
LONGEST_TEXT = 2**24  # bytes; SentencePiece learns nothing from a longer one
THREADS = 2  # part of the result's last digits, so it does not follow the machine


def train_wordpiece(
    texts: Iterable[str], size: int, max_tokens: int, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """A BERT tokenizer whose WordPiece vocabulary of at most `size` pieces is learnt by byte-pair merges."""
    bare = _bert_shaped(models.WordPiece(unk_token="[UNK]"), lowercase)
    learnt = _learn((" ".join(_bert_words(bare, text)) for text in texts), size - len(BERT_SPECIALS), "bpe")
    pieces = [piece[1:] if piece.startswith(WORD_START) else f"##{piece}" for piece, _ in learnt if piece != WORD_START]
    characters = sorted({piece for piece in pieces if len(piece.removeprefix("##")) == 1})
    starts = [piece.removeprefix("##") for piece in characters]  # any character may begin a word
    ordered = dict.fromkeys([*BERT_SPECIALS, *starts, *characters, *pieces])
    vocabulary = {piece: index for index, piece in enumerate(list(ordered)[:size])}
    tokenizer = _bert_shaped(models.WordPiece(vocabulary, unk_token="[UNK]"), lowercase)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_SPECIALS, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_tokens, model_input_names=BERT_INPUTS, **names
    )


def train_unigram(texts: Iterable[str], size: int, max_tokens: int) -> PreTrainedTokenizerFast:
    """An XLM-R tokenizer whose unigram vocabulary of at most `size` pieces is learnt from `texts`."""
    normalizer = _xlmr_shaped(models.Unigram()).normalizer
    learnt = _learn((normalizer.normalize_str(text) for text in texts), size - len(XLMR_SPECIALS) - 1, "unigram")
    pieces = [*((piece, 0.0) for piece in XLMR_SPECIALS), *learnt, ("<mask>", 0.0)]
    tokenizer = _xlmr_shaped(models.Unigram(pieces, unk_id=XLMR_SPECIALS.index("<unk>")))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, XLMR_SPECIALS.index(token)) for token in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def _learn(texts: Iterator[str], size: int, kind: str) -> list[tuple[str, float]]:
    """Pieces and their scores, best first. A corpus too small for `size` pieces gives fewer."""
    texts = (text for text in texts if text)
    first = next(texts, None)
    if first is None:
        raise RequestError("expected text to learn a vocabulary from, found none")
    model = io.BytesIO()
    with _errors_of_its_own(itertools.chain([first], texts)) as sentences:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type=kind,
            vocab_size=size + 1,  # its unknown piece, which is not ours, counts
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=LONGEST_TEXT,
            num_threads=THREADS,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(trained.id_to_piece(i), trained.get_score(i)) for i in range(len(trained)) if not trained.is_unknown(i)]


@contextmanager
def _errors_of_its_own(texts: Iterable[str]) -> Iterator[Iterator[str]]:
    """`texts`; what reading them raises is raised on leaving, in place of SentencePiece's RuntimeError about it."""
    raised: list[BaseException] = []

    def watched() -> Iterator[str]:
        try:
            yield from texts
        except BaseException as error:  # Ctrl-C among them
            raised.append(error)
            raise

    try:
        yield watched()
    except RuntimeError:
        if raised:
            raise raised[0] from None
        raise


def _bert_shaped(model: models.WordPiece, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _bert_words(shaped: Tokenizer, text: str) -> list[str]:
    return [word for word, _ in shaped.pre_tokenizer.pre_tokenize_str(shaped.normalizer.normalize_str(text))]


def _xlmr_shaped(model: models.Unigram) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer
