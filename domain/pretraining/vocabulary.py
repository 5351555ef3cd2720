"""What a tokenizer's vocabulary tells: whether it fits the model and its own rules, and where words begin."""

import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertrelay.backbone import as_fast
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.settings import InputFile

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
    """Whether the tokenizer makes small letters of capitals before it looks for pieces."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and bool(normalizer.normalize_str("A") == "a")


class WordStarts:
    """Which pieces begin a word, for masking of whole words.

    `WordStarts(tokenizer)(ids)` is bool (tokens,) for ids (tokens,) of neighbouring tokens; the first is always True.
    WordPiece marks the pieces that go on (`##`). SentencePiece and byte-level vocabularies mark those that begin (`▁`,
    `Ġ`); there punctuation is a word of its own, as it is for BERT, and so begins what follows it.
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
            stands_alone |= [_is_punctuation(text.strip()) for text in texts]
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


def _is_punctuation(text: str) -> bool:
    """Whether all of `text` is punctuation in BERT's sense."""
    return text != "" and all(each in string.punctuation or unicodedata.category(each)[0] == "P" for each in text)


Pieces = dict[int, list[int]]
"""The id of each new token, and the ids that its text had before."""


def read_words(words: list[str] | InputFile) -> list[str]:
    """The words of a setting, or of a file with one in each line; empty lines are passed over."""
    if isinstance(words, list):
        return words
    try:
        lines = Path(words).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"new_tokens, protected_tokens: expected a text file in UTF-8, found {type(error).__name__} at {words}"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def with_new_tokens(
    tokenizer: PreTrainedTokenizerFast, words: Sequence[str], marks: Sequence[str]
) -> tuple[PreTrainedTokenizerFast, Pieces]:
    """A tokenizer in which every word and mark is one token; what is one already stays as it is.

    words: of text; they join a WordPiece vocabulary, and are pieces of longer words too.
    marks: such as `[NAME]`; they are found before text is cut into words, and are never masked.
    Raises RequestError for words that the vocabulary cannot hold.
    """
    old, rules = plain_rules(tokenizer), plain_rules(tokenizer)
    if any(not old.encode(text, add_special_tokens=False).ids for text in (*words, *marks)):
        raise RequestError("new_tokens, protected_tokens: expected text that gives tokens, found a blank one")
    if isinstance(rules.model, WordPiece):
        rules.model = _with_words(rules, [*_normalized(old, words), *marks])
    elif words:
        kind = type(rules.model).__name__
        raise RequestError(
            f"new_tokens: only a WordPiece vocabulary, as BERT has it, takes new words; this is a {kind}"
        )
    rules.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    new = rules.get_vocab().items() - old.get_vocab().items()
    if words or marks:
        log(f"vocabulary: {len(new):,} of {len(words) + len(marks):,} words and marks are new, the others stood there")
    return as_fast(rules, tokenizer), {number: old.encode(text, add_special_tokens=False).ids for text, number in new}


def _normalized(rules: Tokenizer, words: Sequence[str]) -> list[str]:
    """The words as the vocabulary has them; raises RequestError for those that text is cut up in before."""
    normalizer, cut = rules.normalizer, rules.pre_tokenizer
    normalized = [normalizer.normalize_str(word) if normalizer else word for word in words]
    broken = [word for word, text in zip(words, normalized, strict=True) if len(cut.pre_tokenize_str(text)) != 1]
    if broken:
        raise RequestError(
            f"new_tokens: expected single words, found {len(broken):,} which the tokenizer cuts at spaces or signs "
            f"before it looks at its vocabulary: {', '.join(map(repr, broken[:5]))}{', …' if len(broken) > 5 else ''}"
        )
    return normalized


def _with_words(rules: Tokenizer, words: Sequence[str]) -> WordPiece:
    """The vocabulary with `words` at its end. All added tokens stand in it, or they would get other ids on loading."""
    vocabulary = rules.get_vocab(with_added_tokens=True)
    fresh = [word for word in dict.fromkeys(words) if word not in vocabulary]
    first = max(vocabulary.values()) + 1
    model = rules.model
    return WordPiece(
        vocab={**vocabulary, **{word: first + nth for nth, word in enumerate(fresh)}},
        unk_token=model.unk_token,
        max_input_chars_per_word=model.max_input_chars_per_word,
        continuing_subword_prefix=model.continuing_subword_prefix,
    )


@torch.no_grad()
def give_embeddings(network: PreTrainedModel, pieces: Pieces) -> None:
    """Gives each new token, in `network`, the mean embedding and output bias of its old pieces."""
    if max(pieces, default=0) >= network.config.vocab_size:
        network.resize_token_embeddings(max(pieces) + 1, mean_resizing=False)
    tables: list[Any] = [network.get_input_embeddings(), network.get_output_embeddings()]
    for rows in (tables[0].weight, tables[1].weight, tables[1].bias):  # tied ones twice, which changes nothing
        for number, old in pieces.items():
            rows[number] = rows[old].mean(dim=0)
