"""What a teacher starts from: a model that exists, or a new network with a vocabulary of its own corpus."""

from collections.abc import Sequence

import torch
from transformers import BertModel

from bertrelay.backbone import bert_config, start_positions
from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.encoder_settings import NewEncoder
from bertrelay.stage import StageContext
from bertrelay.vocabulary import train_wordpiece
from teachers.settings import TrainSettings


def start_encoder(settings: TrainSettings, sentences: Sequence[str], context: StageContext) -> SentenceEncoder:
    """The encoder before its first step."""
    if isinstance(settings.base, NewEncoder):
        encoder = new_bert(settings.base, sentences, settings.seed)
    else:
        encoder = SentenceEncoder.load(settings.base, cache_dir=context.cache / "hub")
    return _as_set(encoder, settings)


def new_bert(size: NewEncoder, sentences: Sequence[str], seed: int) -> SentenceEncoder:
    """A BERT with random weights and a WordPiece vocabulary learnt from `sentences`."""
    tokenizer = train_wordpiece(sentences, size.vocabulary, size.max_tokens, lowercase=not size.cased)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = BertModel(bert_config(size, tokenizer))
    start_positions(network, size)
    return SentenceEncoder(network, tokenizer)


def _as_set(encoder: SentenceEncoder, settings: TrainSettings) -> SentenceEncoder:
    """The encoder with the pooling, linear layer and length of the settings, where they say anything."""
    pooling = encoder.pooling if settings.pooling is None else settings.pooling
    changed = SentenceEncoder(
        encoder.backbone,
        encoder.tokenizer,
        pooling=pooling,
        projection=encoder.projection,
        normalize=encoder.normalize,
        max_tokens=settings.max_tokens or encoder.max_tokens,
        prompts=encoder.prompts,
        similarity=encoder.similarity,
    )
    if settings.linear and changed.projection is None:  # a base that has one goes on with it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            changed.projection = Projection(changed.pooled_dim, changed.pooled_dim)
    return changed
