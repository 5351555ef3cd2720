"""The pieces of a tokenizer: which of them can go without another cut of a text that does not use them, and the rest.

Each kind of tokenizer has its reason why leaving out unused pieces leaves a text's tokens alone:

- unigram takes the best path over scores: what is left out was on no best path, and only competed with it;
- WordPiece takes the longest piece that fits: shorter ones are all that a longer one's absence could bring up;
- BPE merges the best pair first: merges that were never made only waited behind those that were.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from bertrelay.errors import RequestError

Document = dict[str, Any]
"""The rules of a tokenizer, as tokenizer.json holds them."""

LEAVE_IT = "leave the vocabulary as it is: trim_vocabulary = false, or --no-trim"
KINDS = ("Unigram", "WordPiece", "BPE")
CHARACTER = re.compile("(##|▁|Ġ)?.?|<0x[0-9A-F]{2}>", re.DOTALL)
"""One character, at the start of a word or inside it, or one byte."""


def document_of(rules: Tokenizer) -> Document:
    """What `rules` say. Raises RequestError for a tokenizer of another kind than KINDS."""
    document: Document = json.loads(rules.to_str())
    model = document["model"]
    if model["type"] not in KINDS:
        raise RequestError(
            f"vocabulary: expected pieces of {', '.join(KINDS)}, which can be trimmed, found {model['type']}; "
            f"{LEAVE_IT}"
        )
    if model["type"] == "BPE" and (model["continuing_subword_prefix"] or model["end_of_word_suffix"]):
        raise RequestError(
            "vocabulary: expected BPE whose pieces are joined as they stand, found marks that joining takes away; "
            f"{LEAVE_IT}"
        )
    return document


def always_kept(document: Document, rules: Tokenizer) -> set[int]:
    """The ids that stay whatever a corpus holds: characters, special and added tokens, what stands for unknown ones.

    The piece of the lowest score stays too: by it unigram rates an unknown character.
    """
    model = document["model"]
    added = [token["id"] for token in document["added_tokens"]]
    characters = [index for piece, index in rules.get_vocab().items() if CHARACTER.fullmatch(piece)]
    kept = {*added, *rules.encode("", "").ids, *characters}
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        unknown = [] if model["unk_id"] is None else [model["unk_id"]]
        return kept.union(unknown, [scores.index(min(scores))])
    return kept.union(index for piece, index in model["vocab"].items() if piece == model["unk_token"])


def with_parts(document: Document, kept: Iterable[int]) -> set[int]:
    """`kept` and, in BPE, all that these pieces are merged from; other kinds build nothing out of pieces."""
    model, found = document["model"], set(kept)
    if model["type"] != "BPE":
        return found
    number: dict[str, int] = model["vocab"]
    pairs: dict[int, list[str]] = {}
    for first, second in model["merges"]:
        pairs.setdefault(number[first + second], []).extend((first, second))
    waiting = list(found)
    while waiting:
        new = {number[part] for part in pairs.get(waiting.pop(), ())} - found
        found |= new
        waiting += new
    return found


def tried_in_vain(document: Document, rules: Tokenizer, text: str) -> Iterator[int]:
    """In WordPiece the pieces at the beginning of words of `text` that turn unknown further on.

    They are in no token, yet without them a shorter piece might find a way through, and the word would be known.
    """
    model = document["model"]
    if model["type"] != "WordPiece":
        return
    text = rules.normalizer.normalize_str(text) if rules.normalizer else text
    words = rules.pre_tokenizer.pre_tokenize_str(text) if rules.pre_tokenizer else [(text, None)]
    for word, _ in words:
        if len(word) <= model["max_input_chars_per_word"]:
            yield from _longest_matches(word, model["vocab"], model["continuing_subword_prefix"])


def _longest_matches(word: str, number: Mapping[str, int], inside: str) -> Iterator[int]:
    start = 0
    while start < len(word):
        mark = inside if start else ""
        fitting = (end for end in range(len(word), start, -1) if mark + word[start:end] in number)
        end = next(fitting, None)
        if end is None:
            return
        yield number[mark + word[start:end]]
        start = end


def rules_of(document: Document, kept: Iterable[int]) -> Tokenizer:
    """The tokenizer with the pieces `kept` alone, renumbered in their order."""
    number = {old: new for new, old in enumerate(sorted(kept))}
    added = [{**token, "id": number[token["id"]]} for token in document["added_tokens"]]
    trimmed = {
        "model": _trimmed_model(document["model"], number),
        "added_tokens": added,
        "post_processor": _renumbered(document["post_processor"], number),
    }
    return Tokenizer.from_str(json.dumps(document | trimmed))


def _trimmed_model(model: Document, number: Mapping[int, int]) -> Document:
    if model["type"] == "Unigram":
        pieces = [piece for index, piece in enumerate(model["vocab"]) if index in number]
        return model | {"vocab": pieces, "unk_id": number.get(model["unk_id"])}
    vocabulary = {piece: number[index] for piece, index in model["vocab"].items() if index in number}
    if model["type"] == "WordPiece":
        return model | {"vocab": vocabulary}
    merges = [pair for pair in model["merges"] if all(piece in vocabulary for piece in (*pair, "".join(pair)))]
    return model | {"vocab": vocabulary, "merges": merges}


def _renumbered(processor: Any, number: Mapping[int, int]) -> Any:
    """What puts special tokens around a text, with their new ids."""
    match processor:
        case {"processors": inner}:
            return processor | {"processors": [_renumbered(each, number) for each in inner]}
        case {"special_tokens": tokens}:
            renumbered = {
                name: token | {"ids": [number[index] for index in token["ids"]]} for name, token in tokens.items()
            }
            return processor | {"special_tokens": renumbered}
        case {"sep": [sep, sep_id], "cls": [cls, cls_id]}:
            return processor | {"sep": [sep, number[sep_id]], "cls": [cls, number[cls_id]]}
    return processor
