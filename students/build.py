"""What a student starts from: a pretrained model, a new network, or the teacher's layers under a new vocabulary."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import XLMRobertaModel

from bertrelay.backbone import start_positions
from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.encoder_settings import NewEncoder
from bertrelay.hardware import default_device
from bertrelay.stage import Metrics, StageContext
from bertrelay.vocabulary import train_unigram
from students.corpus import ParallelCorpus
from students.layers import POSITION_OFFSET, copy_of, keep_layers, set_dropout, xlmr_config
from students.settings import DistillSettings, TeacherCopy
from students.shrinking.side_by_side import counts, side_by_side
from students.shrinking.trim import trim_vocabulary
from students.targets import Targets

VOCABULARY_SENTENCES = 500_000  # enough to learn pieces from; they are held in memory
READ_AT_ONCE = 4096
FITTED_SENTENCES = 8192
RIDGE = 1.0  # of the vectors' mean square: an untrained student's thin directions would be blown up with less


class Start(NamedTuple):
    """A student before its first step; `sizes` are of its base before and after it was made smaller, or none."""

    student: SentenceEncoder
    sizes: Metrics


def start_student(
    settings: DistillSettings, corpus: ParallelCorpus, teacher: SentenceEncoder, targets: Targets, context: StageContext
) -> Start:
    """The student before its first step: it gives vectors of the teacher's size and scale.

    The student of a unit-norm teacher ends in a normalisation. Where sizes differ, or the teacher's vectors have
    other lengths than 1, a projection is learnt; it begins as the ridge regression from the student's vectors to
    the teacher's, so that no step is lost, and no second moment of Adam spoilt, on finding mean and scale.
    """
    bare, sizes = _made_smaller(_base_encoder(settings, corpus, teacher, context), settings, corpus)
    if settings.dropout is not None:
        set_dropout(bare.backbone, settings.dropout)
    needs_fit = bare.dim != teacher.dim or not targets.is_unit
    student = SentenceEncoder(
        bare.backbone,
        bare.tokenizer,
        pooling=bare.pooling,
        projection=None if needs_fit else bare.projection,
        normalize=targets.is_unit,
        max_tokens=min(settings.max_tokens, bare.max_tokens),
    )
    if needs_fit:
        student.projection = fitted_projection(student, corpus, targets)
    return Start(student, sizes)


def _base_encoder(
    settings: DistillSettings, corpus: ParallelCorpus, teacher: SentenceEncoder, context: StageContext
) -> SentenceEncoder:
    if isinstance(settings.base, NewEncoder):
        return new_xlmr(settings.base, corpus, settings.seed)
    if isinstance(settings.base, TeacherCopy):
        tokenizer = train_unigram(_vocabulary_texts(corpus), settings.base.vocabulary, settings.max_tokens)
        return copy_of(teacher, tokenizer)
    return SentenceEncoder.load(settings.base, cache_dir=context.cache / "hub")


def _made_smaller(
    base: SentenceEncoder, settings: DistillSettings, corpus: ParallelCorpus
) -> tuple[SentenceEncoder, Metrics]:
    """The base without the pieces and layers that it is to lose, and its sizes before and after."""
    if not (settings.trim_vocabulary or settings.layers):
        return base, {}
    before = counts(base)
    bare = trim_vocabulary(base, _Texts(corpus)) if settings.trim_vocabulary else base
    if settings.layers:
        keep_layers(bare.backbone, settings.layers)
    return bare, side_by_side(before, counts(bare))


@dataclass(frozen=True)
class _Texts:
    """All sentences to learn from, read from the disk each time they are gone through."""

    corpus: ParallelCorpus

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.corpus), READ_AT_ONCE):
            yield from self.corpus.texts(start, min(start + READ_AT_ONCE, len(self.corpus)))


def _vocabulary_texts(corpus: ParallelCorpus) -> Iterator[str]:
    """The corpus, or sentences evenly spread over it when it is large."""
    every = -(-len(corpus) // VOCABULARY_SENTENCES)
    for start in range(0, len(corpus), READ_AT_ONCE * every):
        yield from corpus.texts(start, min(start + READ_AT_ONCE * every, len(corpus)))[::every]


def new_xlmr(size: NewEncoder, corpus: ParallelCorpus, seed: int) -> SentenceEncoder:
    """An XLM-R with random weights and a unigram vocabulary learnt from the corpus."""
    tokenizer = train_unigram(_vocabulary_texts(corpus), size.vocabulary, size.max_tokens)
    config = xlmr_config(
        tokenizer,
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward or 4 * size.dim,
        max_position_embeddings=size.max_tokens + POSITION_OFFSET,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = XLMRobertaModel(config)
    start_positions(network, size)
    return SentenceEncoder(network, tokenizer)


def fitted_projection(student: SentenceEncoder, corpus: ParallelCorpus, targets: Targets) -> Projection:
    """The ridge regression from the student's pooled vectors before its first step to the teacher's, on a sample.

    Items are spread evenly over the corpus and count as they do in the loss, so what it starts from is at most 1.
    """
    items = np.unique(np.linspace(0, len(corpus) - 1, FITTED_SENTENCES).astype(np.int64))
    sentences = [corpus.texts(item, item + 1)[0] for item in items.tolist()]
    share = corpus.weights[items] / corpus.weights[items].sum()  # (sentences,)
    vectors = _pooled_vectors(student, sentences)  # (sentences, pooled)
    wanted = targets.vectors[corpus.targets[items]].astype(np.float64)  # (sentences, dim)
    centre, wanted_centre = share @ vectors, share @ wanted
    weighted = share[:, None] * (vectors - centre)  # (sentences, pooled)
    covariance = weighted.T @ (vectors - centre)  # (pooled, pooled)
    ridge = RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    weight = np.linalg.solve(covariance + ridge, weighted.T @ (wanted - wanted_centre))  # (pooled, dim)
    projection = Projection(weight.shape[0], weight.shape[1])
    with torch.no_grad():
        projection.linear.weight.copy_(torch.from_numpy(weight.T))
        projection.linear.bias.copy_(torch.from_numpy(wanted_centre - centre @ weight))
    return projection


def _pooled_vectors(student: SentenceEncoder, sentences: list[str]) -> NDArray[np.float64]:
    """What a projection begins from: without one, and without the normalisation that comes after it."""
    pooled = SentenceEncoder(
        student.backbone, student.tokenizer, pooling=student.pooling, max_tokens=student.max_tokens
    )
    return pooled.to(default_device()).encode(sentences, precision="fp32").astype(np.float64)
