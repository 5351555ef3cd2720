"""Checks of a tokenizer's vocabulary: whether it fits the model and its own rules, and where words begin."""

import string
import unicodedata

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase

from bertrelay.errors import RequestError
from bertrelay.progress import log

WORD_MARKS = ("▁", "Ġ")
CASED_SHARE = 0.01
"""An uncased vocabulary has hardly a piece with a capital, a cased one thousands."""
SPARE_SHARE = 0.01
"""Some models round the number of their embeddings up; many that no token has are those of another vocabulary."""


def plain_rules(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's rules that neither cuts nor pads: the caller's tokenizer stays as it is."""
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_truncation()
    rules.no_padding()
    return rules


def before_sentences(rules: Tokenizer) -> str:
    """What to put before a sentence so that its first word is marked as one; byte-level rules want a space."""
    alone, after_space = (rules.encode(text, add_special_tokens=False).tokens[:1] for text in ("a", " a"))
    return " " if "Ġ" in "".join(after_space) and "Ġ" not in "".join(alone) else ""


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, embedding_rows: int) -> None:
    """Raises RequestError when the model has too few embeddings, or a cased vocabulary meets lower-cased text.

    Says when many of the embeddings are of no token.
    """
    if len(tokenizer) > embedding_rows:
        raise RequestError(
            f"base: the vocabulary does not fit the model: {len(tokenizer):,} tokens, and embeddings for "
            f"{embedding_rows:,} of them. Take the tokenizer that the model was trained with."
        )
    if len(tokenizer) < (1 - SPARE_SHARE) * embedding_rows:
        log(
            f"base: the model has embeddings for {embedding_rows:,} tokens and the tokenizer only {len(tokenizer):,}; "
            "see that they belong together"
        )
    pieces = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).keys() - set(tokenizer.all_special_tokens)
    cased = sum(piece != piece.lower() for piece in pieces)
    if lowers_case(tokenizer) and cased > CASED_SHARE * len(pieces):
        raise RequestError(
            f"base: the tokenizer lower-cases text, and {cased:,} of its {len(pieces):,} tokens have capitals, which "
            "would never be met. The vocabulary is a cased one: set do_lower_case to false in tokenizer_config.json."
        )


def lowers_case(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer lower-cases text."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and bool(normalizer.normalize_str("A") == "a")


class WordStarts:
    """Which pieces begin a word, for masking of whole words.

    `WordStarts(tokenizer)(ids)` is bool (tokens,) for ids (tokens,) of neighbouring tokens; the first is always True.
    WordPiece marks the pieces that continue a word (`##`). SentencePiece and byte-level vocabularies mark those that
    begin one (`▁`, `Ġ`); there punctuation is a word of its own, as it is for BERT, and so begins what follows it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        rules = tokenizer.backend_tokenizer
        pieces = [rules.id_to_token(number) or "" for number in range(len(tokenizer))]
        stands_alone = np.zeros(len(pieces), bool)
        if isinstance(rules.model, WordPiece):
            begins = [not piece.startswith(rules.model.continuing_subword_prefix) for piece in pieces]
        else:
            begins = [piece.startswith(WORD_MARKS) for piece in pieces]
            texts = rules.decode_batch([[number] for number in range(len(pieces))], skip_special_tokens=False)
            stands_alone |= [bool(text.strip()) and all(map(_is_punctuation, text.strip())) for text in texts]
        stands_alone[[*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids]] = True
        self._begins = np.array(begins) | stands_alone  # (vocabulary,)
        self._stands_alone = stands_alone  # (vocabulary,)
        self._is_mark = np.array([piece in WORD_MARKS for piece in pieces])  # (vocabulary,)

    def __call__(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        starts: NDArray[np.bool_] = self._begins[ids]  # (tokens,)
        starts[1:] |= self._stands_alone[ids[:-1]]
        starts[1:] &= ~self._is_mark[ids[:-1]]  # a mark that is a piece of its own marks the next one
        starts[:1] = True
        return starts


def _is_punctuation(character: str) -> bool:
    """In BERT's sense."""
    return character in string.punctuation or unicodedata.category(character)[0] == "P"
