"""Trimming a vocabulary to a corpus: unused subwords are left out, and the corpus is tokenized as before.

Each kind of tokenizer has its reason why the tokens of a text do not depend on subwords that it does not use:

- unigram takes the best path over scores: an unused subword was on no best path, and only competed with it;
- WordPiece takes the longest subword that fits: a longer one's absence could only bring up shorter ones;
- BPE merges the best pair first: merges that were never made only waited behind those that were.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from bertrelay.blocks import blocks_of
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
TokenizerJson = dict[str, Any]
"""The content of tokenizer.json."""

LEAVE_IT = "leave the vocabulary as it is: trim_vocabulary = false, or --no-trim"
KINDS = ("Unigram", "WordPiece", "BPE")
CHARACTER = re.compile("(##|▁|Ġ)?.?|<0x[0-9A-F]{2}>", re.DOTALL)
"""One character, at the start of a word or inside it, or one byte."""


def tokenizer_json(rules: Tokenizer) -> TokenizerJson:
    """Returns the content of `rules`. Raises RequestError for a tokenizer of another kind than KINDS."""
    document: TokenizerJson = json.loads(rules.to_str())
    model = document["model"]
    if model["type"] not in KINDS:
        raise RequestError(
            f"vocabulary: expected subwords of {', '.join(KINDS)}, which can be trimmed, found {model['type']}; "
            f"{LEAVE_IT}"
        )
    if model["type"] == "BPE" and (model["continuing_subword_prefix"] or model["end_of_word_suffix"]):
        raise RequestError(
            "vocabulary: expected BPE whose subwords are joined without marks, found marks that joining takes away; "
            f"{LEAVE_IT}"
        )
    return document


def permanent_ids(document: TokenizerJson, rules: Tokenizer) -> set[int]:
    """Returns the ids that stay with every corpus: characters, special and added tokens, the unknown token.

    The subword with the lowest score stays too: unigram rates an unknown character by it.
    """
    model = document["model"]
    added = [token["id"] for token in document["added_tokens"]]
    characters = [index for subword, index in rules.get_vocab().items() if CHARACTER.fullmatch(subword)]
    ids = {*added, *rules.encode("", "").ids, *characters}
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        unknown = [] if model["unk_id"] is None else [model["unk_id"]]
        return ids.union(unknown, [scores.index(min(scores))])
    return ids.union(index for subword, index in model["vocab"].items() if subword == model["unk_token"])


def add_parts(document: TokenizerJson, ids: Iterable[int]) -> set[int]:
    """Returns `ids` and, in BPE, the subwords that theirs are merged from; other kinds merge nothing.

    Example: `low` is merged from `lo` and `w`, and `lo` from `l` and `o`, so all five belong to the id of `low`.
    """
    model, complete = document["model"], set(ids)
    if model["type"] != "BPE":
        return complete
    id_of: dict[str, int] = model["vocab"]
    parts: dict[int, list[str]] = {}
    for first, second in model["merges"]:
        parts.setdefault(id_of[first + second], []).extend((first, second))
    waiting = list(complete)
    while waiting:
        new = {id_of[part] for part in parts.get(waiting.pop(), ())} - complete
        complete |= new
        waiting += new
    return complete


def longest_failed_matches(document: TokenizerJson, rules: Tokenizer, text: str) -> Iterator[int]:
    """Yields, in WordPiece, the longest subwords of the words of `text`, up to where none fits and a word is unknown.

    They are in no token, yet without them a shorter subword might match, and the word would be known.

    Example: subwords a, ab, ##bc. Of `abc` the longest match is `ab`, after which nothing fits, so the word is
    unknown. Without `ab` it would be `a ##bc`.
    """
    model = document["model"]
    if model["type"] != "WordPiece":
        return
    id_of, text = model["vocab"], rules.normalizer.normalize_str(text) if rules.normalizer else text
    words = rules.pre_tokenizer.pre_tokenize_str(text) if rules.pre_tokenizer else [(text, None)]
    for word, _ in words:
        start = 0
        while start < len(word) <= model["max_input_chars_per_word"]:
            mark = model["continuing_subword_prefix"] if start else ""
            fitting = (end for end in range(len(word), start, -1) if mark + word[start:end] in id_of)
            end = next(fitting, None)
            if end is None:
                break
            yield id_of[mark + word[start:end]]
            start = end


def build_rules(document: TokenizerJson, ids: Iterable[int]) -> Tokenizer:
    """Builds the tokenizer with only the subwords `ids`, renumbered in their order."""
    new_id = {old: new for new, old in enumerate(sorted(ids))}
    added = [{**token, "id": new_id[token["id"]]} for token in document["added_tokens"]]
    trimmed = {
        "model": _trim_model(document["model"], new_id),
        "added_tokens": added,
        "post_processor": _renumber(document["post_processor"], new_id),
    }
    return Tokenizer.from_str(json.dumps(document | trimmed))


def _trim_model(model: TokenizerJson, new_id: Mapping[int, int]) -> TokenizerJson:
    if model["type"] == "Unigram":
        subwords = [subword for index, subword in enumerate(model["vocab"]) if index in new_id]
        return model | {"vocab": subwords, "unk_id": new_id.get(model["unk_id"])}
    vocabulary = {subword: new_id[index] for subword, index in model["vocab"].items() if index in new_id}
    if model["type"] == "WordPiece":
        return model | {"vocab": vocabulary}
    merges = [pair for pair in model["merges"] if all(subword in vocabulary for subword in (*pair, "".join(pair)))]
    return model | {"vocab": vocabulary, "merges": merges}


def _renumber(processor: Any, new_id: Mapping[int, int]) -> Any:
    """Gives the special tokens that a post-processor puts around a text their new ids."""
    match processor:
        case {"processors": inner}:
            return processor | {"processors": [_renumber(part, new_id) for part in inner]}
        case {"special_tokens": tokens}:
            renumbered = {
                name: token | {"ids": [new_id[index] for index in token["ids"]]} for name, token in tokens.items()
            }
            return processor | {"special_tokens": renumbered}
        case {"sep": [sep, sep_id], "cls": [cls, cls_id]}:
            return processor | {"sep": [sep, new_id[sep_id]], "cls": [cls, new_id[cls_id]]}
    return processor


def trim_vocabulary(encoder: SentenceEncoder, texts: Iterable[str], also: Iterable[int] = ()) -> SentenceEncoder:
    """Returns an encoder with the subwords that `texts` use, alone or after one of the model's prompts, and characters.

    texts: read twice and never held in memory. also: ids of further subwords to keep. `encoder` does not change.
    Raises RequestError for a generator, which can be read once only, for no texts, and for a tokenizer whose subwords
    are not unigram, WordPiece or BPE; WorkError if a text would be tokenized differently.
    """
    check_can_be_read_again(texts)
    rules = plain_rules(encoder.tokenizer)
    document = tokenizer_json(rules)
    usage = measure_usage(rules, document, _with_prompts(texts, encoder.prompts))
    named = {*range(unused_positions(encoder.backbone)), *_named_ids(encoder.backbone.config).values()}
    named &= set(rules.get_vocab().values())  # a config may name an id without a subword
    remaining = add_parts(document, usage.ids | named | permanent_ids(document, rules) | {*also})
    old_ids = np.array(sorted(remaining))
    log(f"vocabulary: {usage.texts:,} texts need {len(old_ids):,} of {len(encoder.tokenizer):,} subwords")
    trimmed = build_rules(document, remaining)
    with_end = np.append(old_ids, END_OF_TEXT)  # the last one is where END_OF_TEXT, as an index, points
    digest = hashlib.sha256()
    with progress("vocabulary: checking that tokens are the same", usage.texts, "texts") as bar:
        for block, ids in _encode(trimmed, _with_prompts(texts, encoder.prompts)):
            digest.update(with_end[ids].data)
            bar.advance(len(block))
    if digest.hexdigest() != usage.digest:
        raise WorkError(
            "vocabulary: a text would be cut into other tokens than before, so nothing was trimmed. If no file of the "
            f"corpus was changed meanwhile, report the model, and {LEAVE_IT}"
        )
    return encoder.with_parts(
        backbone=_with_rows(encoder.backbone, old_ids),
        tokenizer=as_fast(trimmed, encoder.tokenizer),
        projection=deepcopy(encoder.projection),
        spaces=(encoder_digest(encoder), *encoder.spaces),
        matryoshka_dimensions=encoder.matryoshka_dimensions,
    )


def check_can_be_read_again(texts: Iterable[str]) -> None:
    """Raises RequestError for anything but texts, and for a generator, which can be read once only."""
    iterate_texts(texts, "texts")
    if isinstance(texts, Iterator):
        raise RequestError("texts: expected a list, or another iterable that can be read twice; found a generator")


def _with_prompts(texts: Iterable[str], prompts: Prompts) -> Iterator[str]:
    """Yields each text alone and after every prompt, because a subword may reach from one into the other."""
    for text in iterate_texts(texts, "texts"):
        yield text
        yield from (prompt + text for prompt in dict.fromkeys(prompts.texts.values()))


class Usage(NamedTuple):
    """The ids that texts use, the number of texts, and the sha256 of all their ids."""

    ids: set[int]
    texts: int
    digest: str


def measure_usage(rules: Tokenizer, document: TokenizerJson, texts: Iterable[str]) -> Usage:
    """Tokenizes `texts`, and collects the ids that they use. Raises RequestError for no texts."""
    used, count, digest = {END_OF_TEXT}, 0, hashlib.sha256()
    unknown = rules.token_to_id(document["model"].get("unk_token") or "")
    for block, ids in _encode(rules, texts):
        used.update(np.unique(ids).tolist())
        digest.update(ids.data)
        count += len(block)
        for number in np.unique((ids == END_OF_TEXT).cumsum()[ids == unknown]).tolist():
            used.update(longest_failed_matches(document, rules, block[number]))
    if not count:
        raise RequestError("vocabulary: expected texts to trim it to, found none")
    return Usage(used - {END_OF_TEXT}, count, digest.hexdigest())


def _encode(rules: Tokenizer, texts: Iterable[str]) -> Iterator[tuple[list[str], Ids]]:
    """Yields blocks of texts with the ids of all, end to end, each followed by END_OF_TEXT."""
    for block in blocks_of(texts, BLOCK_ROWS):
        lists = (encoding.ids for encoding in rules.encode_batch_fast(block))
        yield block, np.fromiter(chain.from_iterable((*ids, END_OF_TEXT) for ids in lists), np.int64)


def _named_ids(config: PreTrainedConfig) -> dict[str, int]:
    """Returns the ids that a network's config names, such as `pad_token_id`."""
    named = ((name, value) for name, value in config.to_dict().items() if name.endswith("_token_id"))
    return {name: value for name, value in named if isinstance(value, int)}


def _with_rows(backbone: PreTrainedModel, old_ids: Ids) -> PreTrainedModel:
    """Copies the network with only the token vectors `old_ids`; the large table itself is never copied."""
    new_id = {old: new for new, old in enumerate(old_ids.tolist())}
    table = cast(nn.Embedding, backbone.get_input_embeddings())
    padding = None if table.padding_idx is None else new_id[table.padding_idx]
    rows = copy(table)  # of its own class: Gemma's scales its vectors
    rows._parameters = {"weight": nn.Parameter(table.weight.detach()[old_ids])}  # (remaining, dim)
    rows.num_embeddings, rows.padding_idx = len(old_ids), padding
    # deepcopy takes these two as copied already, in every module that has them (T5 has two)
    smaller = deepcopy(backbone, {id(table): rows, id(table.weight): rows.weight})
    smaller.config.vocab_size = len(old_ids)
    for name, index in _named_ids(backbone.config).items():
        setattr(smaller.config, name, new_id.get(index, index))
    return smaller
