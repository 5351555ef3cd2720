"""Words of a domain that become one token each. Their embeddings start as the mean of the pieces they were before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import as_fast
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.settings import InputFile
from domain.pretraining.vocabulary import plain_rules

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
