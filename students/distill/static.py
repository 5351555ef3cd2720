"""The start of a static student: a table of token vectors from a model that encodes each token alone.

Tulkens & van Dongen (2024), "Model2Vec", with the frequencies of the corpus in place of Zipf's.
"""

from functools import partial
from itertools import chain, islice
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

import bertrelay.progress
from bertrelay.blocks import blocks_of
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.inference.batches import compute_blocks
from bertrelay.inference.encode import TokenBlock, compute_block
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import projections_of
from bertrelay.model.static import static_network, static_tokenizer
from bertrelay.model.tokenizer import plain_rules
from students.compress.dimensions import principal_axes
from students.parallel.corpus import ParallelCorpus

BLOCK = 16_384
"""Tokens whose vectors are computed at once."""
COUNTED_SENTENCES = 200_000
SMOOTHING = 1e-3
"""a in the weight a / (a + p) of a token of probability p (Arora, Liang & Ma 2017)."""


def create_static(
    parent: SentenceEncoder, corpus: ParallelCorpus, dim: int | None, precision: ComputePrecision
) -> SentenceEncoder:
    """A static encoder with the parent's tokenizer.

    1. The parent encodes each token alone, between its special tokens.
    2. The mean over the tokens of the corpus is subtracted: it says nothing of a text.
    3. Each vector is weighted by a / (a + p), p the token's probability in the corpus.
    4. With `dim` they are turned to the axes along which the weighted vectors of the corpus are longest.

    Raises RequestError for as many dimensions as the parent has, or more.
    """
    if dim is not None and dim >= parent.dim:
        raise RequestError(f"base.dim: expected fewer than the {parent.dim} dimensions of the encoder, found {dim}")
    tokenizer = static_tokenizer(plain_rules(parent.tokenizer))
    probabilities = _probabilities(tokenizer.backend_tokenizer, corpus)
    vectors = _token_vectors(parent, len(tokenizer), precision)
    weights = SMOOTHING / (SMOOTHING + probabilities)  # (tokens,)
    vectors -= (probabilities @ vectors).astype(np.float32)
    vectors *= weights[:, None].astype(np.float32)
    if dim is not None:
        in_corpus = vectors * np.sqrt(probabilities)[:, None].astype(np.float32)
        vectors = (vectors @ principal_axes(in_corpus, dim)).astype(np.float32)
    network = static_network(torch.from_numpy(np.ascontiguousarray(vectors)), tokenizer)
    return SentenceEncoder(cast(PreTrainedModel, network), tokenizer, prompts=parent.prompts)


def _probabilities(rules: Tokenizer, corpus: ParallelCorpus) -> NDArray[np.float64]:
    """The probability of each token in the corpus, one occurrence more each than it has; (tokens,)."""
    counts = np.ones(rules.get_vocab_size())
    sentences = islice(corpus, 0, None, -(-len(corpus) // COUNTED_SENTENCES))
    for block in blocks_of(sentences, BLOCK_ROWS):
        ids = chain.from_iterable(encoding.ids for encoding in rules.encode_batch_fast(block))
        counts += np.bincount(np.fromiter(ids, np.int64), minlength=len(counts))
    probabilities: NDArray[np.float64] = counts / counts.sum()
    return probabilities


def _token_vectors(parent: SentenceEncoder, tokens: int, precision: ComputePrecision) -> Vectors:
    """The parent's vector of each token between the special tokens that it adds to a text, (tokens, dim)."""
    encoding = plain_rules(parent.tokenizer).encode("a")
    mask = encoding.special_tokens_mask
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    before, after = encoding.ids[:first], encoding.ids[last:]
    parent, vectors = parent.to(default_device()), np.empty((tokens, parent.dim), np.float32)
    with bertrelay.progress.progress("vectors of tokens", tokens, "tokens") as bar:
        blocks = (
            TokenBlock.of_rows([[*before, token, *after] for token in range(start, min(start + BLOCK, tokens))])
            for start in range(0, tokens, BLOCK)
        )
        compute = partial(compute_block, parent, bar=bar)
        computed = compute_blocks(parent, blocks, lambda block: len(block.ids), compute, precision)
        for start, block in zip(range(0, tokens, BLOCK), computed, strict=True):
            vectors[start : start + len(block)] = block
    return vectors


def fold_projection(student: SentenceEncoder) -> SentenceEncoder:
    """The student without its linear map, which the table takes: W · mean + b is the mean of W · row + b."""
    (projection,) = projections_of(student.projection)
    embedding = cast(nn.Embedding, student.backbone.get_input_embeddings())
    table = embedding.weight.detach()[: len(student.tokenizer)]  # (tokens, dim)
    with torch.no_grad():
        folded = projection.linear(table.to(projection.linear.weight.device)).cpu()
    network = static_network(folded, student.tokenizer)
    folded_student = student.with_parts(backbone=cast(PreTrainedModel, network), projection=None)
    folded_student.spaces = student.spaces
    return folded_student
