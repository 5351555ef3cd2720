"""A vocabulary trimmed to the languages of a corpus: what its texts do not use is left out, and ids are renumbered.

XLM-R spends two thirds of its parameters on 250,000 pieces of a hundred languages. No text of the corpus changes a
token by the trimming, and so none its vector; all texts are cut again to make sure. Every piece of a single character
stays, so that a text never seen falls into smaller pieces and does not turn unknown.
"""

import hashlib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain, islice
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from bertrelay.backbone import as_fast, unused_positions
from bertrelay.data.texts import each_text
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, WorkError
from bertrelay.layout import Prompts
from bertrelay.progress import log, progress
from students.shrinking.pieces import LEAVE_IT, Document, always_kept, document_of, rules_of, tried_in_vain, with_parts

TEXTS_AT_ONCE = 8192
END_OF_TEXT = -1

Ids = NDArray[np.int64]


class Usage(NamedTuple):
    """What reading the texts has shown: the ids they use, how many texts they are, and a digest of each block's ids."""

    ids: set[int]
    texts: int
    digests: list[bytes]


def trim_vocabulary(encoder: SentenceEncoder, texts: Iterable[str]) -> SentenceEncoder:
    """An encoder with the pieces that `texts` use, alone or after one of the model's prompts, and all characters.

    texts: read twice and never held; `encoder` stays as it is.
    Raises RequestError for a generator, which can be read once only, for no texts, and for a tokenizer whose pieces
    are not unigram, WordPiece or BPE; WorkError if a text should be cut otherwise than before.
    """
    check_can_be_read_again(texts)
    rules = Tokenizer.from_str(encoder.tokenizer.backend_tokenizer.to_str())
    rules.no_truncation()  # a piece behind the cut is used as well: another `max_tokens` may bring it up
    rules.no_padding()
    document = document_of(rules)
    usage = _usage(rules, document, _with_prompts(texts, encoder.prompts))
    kept = _kept_ids(encoder, rules, document, usage.ids)
    log(f"vocabulary: {usage.texts:,} texts need {len(kept):,} of {len(encoder.tokenizer):,} pieces")
    trimmed = rules_of(document, kept.tolist())
    _check_same_tokens(trimmed, kept, usage, _with_prompts(texts, encoder.prompts))
    return SentenceEncoder(
        _with_rows(encoder.backbone, kept),
        as_fast(trimmed, encoder.tokenizer),
        pooling=encoder.pooling,
        projection=deepcopy(encoder.projection),
        normalize=encoder.normalize,
        max_tokens=encoder.max_tokens,
        prompts=encoder.prompts,
        similarity=encoder.similarity,
    )


def check_can_be_read_again(texts: Iterable[str]) -> None:
    """Raises RequestError for what holds no texts, and for a generator, which can be read once only."""
    each_text(texts, "texts")
    if isinstance(texts, Iterator):
        raise RequestError("texts: expected a list, or what can be read again from its beginning; found a generator")


def _with_prompts(texts: Iterable[str], prompts: Prompts) -> Iterator[str]:
    """Each text alone and after every prompt, because a piece may reach from one into the other."""
    for text in each_text(texts, "texts"):
        yield text
        yield from (prompt + text for prompt in prompts.texts.values())


def _usage(rules: Tokenizer, document: Document, texts: Iterable[str]) -> Usage:
    used, count, digests = {END_OF_TEXT}, 0, []
    unknown = rules.token_to_id(document["model"].get("unk_token") or "")
    for block in _blocks(texts):
        ids = _ids(rules, block)
        used.update(np.unique(ids).tolist())
        digests.append(_digest(ids))
        count += len(block)
        for place in np.unique((ids == END_OF_TEXT).cumsum()[ids == unknown]).tolist():
            used.update(tried_in_vain(document, rules, block[place]))
    if not count:
        raise RequestError("vocabulary: expected texts to trim it to, found none")
    return Usage(used - {END_OF_TEXT}, count, digests)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while block := list(islice(stream, TEXTS_AT_ONCE)):
        yield block


def _ids(rules: Tokenizer, block: list[str]) -> Ids:
    """The ids of all texts, one after the other, each with END_OF_TEXT behind it."""
    lists = (encoding.ids for encoding in rules.encode_batch_fast(block))
    return np.fromiter(chain.from_iterable((*ids, END_OF_TEXT) for ids in lists), np.int64)


def _digest(ids: Ids) -> bytes:
    return hashlib.sha256(ids.tobytes()).digest()


def _kept_ids(encoder: SentenceEncoder, rules: Tokenizer, document: Document, used: set[int]) -> Ids:
    """The ids that stay, in their order. The first ones do where the network counts positions from its padding id."""
    named = {*range(unused_positions(encoder.backbone)), *_named_ids(encoder.backbone.config).values()}
    named &= set(rules.get_vocab().values())  # a config may name an id that no piece has
    return np.array(sorted(with_parts(document, used | named | always_kept(document, rules))))


def _named_ids(config: PreTrainedConfig) -> dict[str, int]:
    """The ids that a network's config names: `pad_token_id` and the like."""
    named = ((name, value) for name, value in config.to_dict().items() if name.endswith("_token_id"))
    return {name: value for name, value in named if isinstance(value, int)}


def _check_same_tokens(trimmed: Tokenizer, kept: Ids, usage: Usage, texts: Iterable[str]) -> None:
    old_ids = np.append(kept, END_OF_TEXT)  # the last one is where END_OF_TEXT, as an index, points
    digests = []
    with progress("vocabulary: checking that tokens are the same", usage.texts, "texts") as bar:
        for block in _blocks(texts):
            digests.append(_digest(old_ids[_ids(trimmed, block)]))
            bar.advance(len(block))
    if digests != usage.digests:
        raise WorkError(
            "vocabulary: a text would be cut into other tokens than before, so nothing was trimmed. If no file of the "
            f"corpus was changed meanwhile, tell us which model it is, and {LEAVE_IT}"
        )


def _with_rows(backbone: PreTrainedModel, kept: Ids) -> PreTrainedModel:
    """A copy of the network with the token vectors `kept` alone; the large table itself is never copied."""
    number = {old: new for new, old in enumerate(kept.tolist())}
    table = cast(nn.Embedding, backbone.get_input_embeddings())
    padding = None if table.padding_idx is None else number[table.padding_idx]
    weight = table.weight.detach()[kept]  # (kept, dim)
    rows = nn.Embedding(len(kept), table.embedding_dim, padding, _weight=weight)
    smaller = deepcopy(backbone, {id(table): rows})
    smaller.config.vocab_size = len(kept)
    for name, index in _named_ids(backbone.config).items():
        setattr(smaller.config, name, number.get(index, index))
    return smaller
