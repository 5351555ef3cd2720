"""The pieces of a tokenizer: which of them can go without another cut of a text that does not use them, and the rest.

Each kind of tokenizer has its reason why leaving out unused pieces leaves a text's tokens alone:

- unigram takes the best path over scores: what is left out was on no best path, and only competed with it;
- WordPiece takes the longest piece that fits: shorter ones are all that a longer one's absence could bring up;
- BPE merges the best pair first: merges that were never made only waited behind those that were.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from itertools import chain, islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from bertrelay.checks import iterate_texts
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.model.layout import Prompts
from bertrelay.model.network import unused_positions
from bertrelay.model.tokenizer import as_fast, plain_rules
from bertrelay.progress import log, progress

END_OF_TEXT = -1

Ids = NDArray[np.int64]
Document = dict[str, Any]
"""The rules of a tokenizer, as in tokenizer.json."""

LEAVE_IT = "leave the vocabulary as it is: trim_vocabulary = false, or --no-trim"
KINDS = ("Unigram", "WordPiece", "BPE")
CHARACTER = re.compile("(##|▁|Ġ)?.?|<0x[0-9A-F]{2}>", re.DOTALL)
"""One character, at the start of a word or inside it, or one byte."""


def document_of(rules: Tokenizer) -> Document:
    """The content of `rules`. Raises RequestError for a tokenizer of another kind than KINDS."""
    document: Document = json.loads(rules.to_str())
    model = document["model"]
    if model["type"] not in KINDS:
        raise RequestError(
            f"vocabulary: expected pieces of {', '.join(KINDS)}, which can be trimmed, found {model['type']}; "
            f"{LEAVE_IT}"
        )
    if model["type"] == "BPE" and (model["continuing_subword_prefix"] or model["end_of_word_suffix"]):
        raise RequestError(
            "vocabulary: expected BPE whose pieces are joined without marks, found marks that joining takes away; "
            f"{LEAVE_IT}"
        )
    return document


def always_kept(document: Document, rules: Tokenizer) -> set[int]:
    """The ids that stay whatever a corpus contains: characters, special and added tokens, the unknown token.

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
    model, complete = document["model"], set(kept)
    if model["type"] != "BPE":
        return complete
    number: dict[str, int] = model["vocab"]
    pairs: dict[int, list[str]] = {}
    for first, second in model["merges"]:
        pairs.setdefault(number[first + second], []).extend((first, second))
    waiting = list(complete)
    while waiting:
        new = {number[part] for part in pairs.get(waiting.pop(), ())} - complete
        complete |= new
        waiting += new
    return complete


def longest_failed_matches(document: Document, rules: Tokenizer, text: str) -> Iterator[int]:
    """In WordPiece the longest pieces of the words of `text`, up to where none fits and the word is unknown.

    They are in no token, yet without them a shorter piece might find a way through, and the word would be known.
    """
    model = document["model"]
    if model["type"] != "WordPiece":
        return
    number, text = model["vocab"], rules.normalizer.normalize_str(text) if rules.normalizer else text
    words = rules.pre_tokenizer.pre_tokenize_str(text) if rules.pre_tokenizer else [(text, None)]
    for word, _ in words:
        start = 0
        while start < len(word) <= model["max_input_chars_per_word"]:
            mark = model["continuing_subword_prefix"] if start else ""
            fitting = (end for end in range(len(word), start, -1) if mark + word[start:end] in number)
            end = next(fitting, None)
            if end is None:
                break
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
            return processor | {"processors": [_renumbered(part, number) for part in inner]}
        case {"special_tokens": tokens}:
            renumbered = {
                name: token | {"ids": [number[index] for index in token["ids"]]} for name, token in tokens.items()
            }
            return processor | {"special_tokens": renumbered}
        case {"sep": [sep, sep_id], "cls": [cls, cls_id]}:
            return processor | {"sep": [sep, number[sep_id]], "cls": [cls, number[cls_id]]}
    return processor


def trim_vocabulary(encoder: SentenceEncoder, texts: Iterable[str], also: Iterable[int] = ()) -> SentenceEncoder:
    """An encoder with the pieces that `texts` use, alone or after one of the model's prompts, and all characters.

    texts: read twice and never held; `encoder` stays as it is. also: ids of pieces that stay beside these.
    Raises RequestError for a generator, which can be read once only, for no texts, and for a tokenizer whose pieces
    are not unigram, WordPiece or BPE; WorkError if a text should be cut otherwise than before.
    """
    check_can_be_read_again(texts)
    rules = plain_rules(encoder.tokenizer)
    document = document_of(rules)
    used, count, digest = usage(rules, document, _with_prompts(texts, encoder.prompts))
    named = {*range(unused_positions(encoder.backbone)), *_named_ids(encoder.backbone.config).values()}
    named &= set(rules.get_vocab().values())  # a config may name an id that no piece has
    kept = np.array(sorted(with_parts(document, used | named | always_kept(document, rules) | {*also})))
    log(f"vocabulary: {count:,} texts need {len(kept):,} of {len(encoder.tokenizer):,} pieces")
    trimmed = rules_of(document, kept.tolist())
    old_ids = np.append(kept, END_OF_TEXT)  # the last one is where END_OF_TEXT, as an index, points
    trimmed_digest = hashlib.sha256()
    with progress("vocabulary: checking that tokens are the same", count, "texts") as bar:
        for block, ids in _encoded(trimmed, _with_prompts(texts, encoder.prompts)):
            trimmed_digest.update(old_ids[ids].data)
            bar.advance(len(block))
    if trimmed_digest.hexdigest() != digest:
        raise WorkError(
            "vocabulary: a text would be cut into other tokens than before, so nothing was trimmed. If no file of the "
            f"corpus was changed meanwhile, report the model, and {LEAVE_IT}"
        )
    return encoder.with_parts(
        backbone=_with_rows(encoder.backbone, kept),
        tokenizer=as_fast(trimmed, encoder.tokenizer),
        projection=deepcopy(encoder.projection),
        spaces=(encoder_digest(encoder), *encoder.spaces),
    )


def check_can_be_read_again(texts: Iterable[str]) -> None:
    """Raises RequestError for what are no texts, and for a generator, which can be read once only."""
    iterate_texts(texts, "texts")
    if isinstance(texts, Iterator):
        raise RequestError("texts: expected a list, or what can be read again from its beginning; found a generator")


def _with_prompts(texts: Iterable[str], prompts: Prompts) -> Iterator[str]:
    """Each text alone and after every prompt, because a piece may reach from one into the other."""
    for text in iterate_texts(texts, "texts"):
        yield text
        yield from (prompt + text for prompt in dict.fromkeys(prompts.texts.values()))


def usage(rules: Tokenizer, document: Document, texts: Iterable[str]) -> tuple[set[int], int, str]:
    """The ids that texts use, how many texts they are, and the sha256 of all ids. Raises RequestError for no texts."""
    used, count, digest = {END_OF_TEXT}, 0, hashlib.sha256()
    unknown = rules.token_to_id(document["model"].get("unk_token") or "")
    for block, ids in _encoded(rules, texts):
        used.update(np.unique(ids).tolist())
        digest.update(ids.data)
        count += len(block)
        for place in np.unique((ids == END_OF_TEXT).cumsum()[ids == unknown]).tolist():
            used.update(longest_failed_matches(document, rules, block[place]))
    if not count:
        raise RequestError("vocabulary: expected texts to trim it to, found none")
    return used - {END_OF_TEXT}, count, digest.hexdigest()


def _encoded(rules: Tokenizer, texts: Iterable[str]) -> Iterator[tuple[list[str], Ids]]:
    """Blocks of texts with the ids of all, one after the other, each with END_OF_TEXT behind it."""
    stream = iter(texts)
    while block := list(islice(stream, BLOCK_ROWS)):
        lists = (encoding.ids for encoding in rules.encode_batch_fast(block))
        yield block, np.fromiter(chain.from_iterable((*ids, END_OF_TEXT) for ids in lists), np.int64)


def _named_ids(config: PreTrainedConfig) -> dict[str, int]:
    """The ids that a network's config names: `pad_token_id` and the like."""
    named = ((name, value) for name, value in config.to_dict().items() if name.endswith("_token_id"))
    return {name: value for name, value in named if isinstance(value, int)}


def _with_rows(backbone: PreTrainedModel, kept: Ids) -> PreTrainedModel:
    """A copy of the network with the token vectors `kept` alone; the large table itself is never copied."""
    number = {old: new for new, old in enumerate(kept.tolist())}
    table = cast(nn.Embedding, backbone.get_input_embeddings())
    padding = None if table.padding_idx is None else number[table.padding_idx]
    rows = copy(table)  # of its own class: Gemma's scales its vectors
    rows._parameters = {"weight": nn.Parameter(table.weight.detach()[kept])}  # (kept, dim)
    rows.num_embeddings, rows.padding_idx = len(kept), padding
    smaller = deepcopy(backbone, {id(table): rows, id(table.weight): rows.weight})  # T5 has it in two modules
    smaller.config.vocab_size = len(kept)
    for name, index in _named_ids(backbone.config).items():
        setattr(smaller.config, name, number.get(index, index))
    return smaller
