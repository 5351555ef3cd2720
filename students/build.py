"""What a student starts from: a pretrained model, a new network, or the teacher's layers under a new vocabulary."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from bertrelay.encoder import SentenceEncoder
from bertrelay.encoder_settings import NewEncoder
from bertrelay.errors import RequestError
from bertrelay.hardware import default_device
from bertrelay.new_encoder import WORD_START, start_positions, train_unigram
from bertrelay.pooling import Projection
from bertrelay.stage import Metrics, StageContext
from students.metrics import before_and_after, counts
from students.parallel.corpus import ParallelCorpus
from students.settings import DistillSettings, TeacherCopy
from students.targets import Targets
from students.vocabulary import trim_vocabulary

POSITION_OFFSET = 2  # XLM-R counts positions from its padding id 1, plus one
WITH_OFFSET = ("roberta", "xlm-roberta")
COPIED = ("bert", *WITH_OFFSET)
STACKS = ("encoder.layer", "transformer.layer")  # BERT and its kin; DistilBERT


def copy_of(teacher: SentenceEncoder, tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    """An XLM-R with the teacher's layers, pooling and projection, and a new vocabulary.

    A new token's vector is the mean of the teacher's vectors of the pieces its text is cut into; position rows move
    to XLM-R's offset; of token types the first row stays, as one type is all a sentence encoder sees.
    Raises RequestError for a teacher whose layers are not those of BERT, RoBERTa or XLM-R.
    """
    old = teacher.backbone.config
    if old.model_type not in COPIED:
        raise RequestError(
            f"base: layers can be copied from a BERT, RoBERTa or XLM-R teacher, found {old.model_type!r}. "
            "Give a model, or the size of a new one."
        )
    state = {name: tensor.cpu() for name, tensor in teacher.backbone.state_dict().items()}
    positions = state["embeddings.position_embeddings.weight"]
    if old.model_type in WITH_OFFSET:
        positions = positions[POSITION_OFFSET:]
    backbone = XLMRobertaModel(_config_like(old, tokenizer, len(positions)))
    unused = torch.zeros(POSITION_OFFSET, positions.shape[1])
    state["embeddings.position_embeddings.weight"] = torch.cat([unused, positions])
    state["embeddings.token_type_embeddings.weight"] = state["embeddings.token_type_embeddings.weight"][:1]
    state["embeddings.word_embeddings.weight"] = _token_vectors(teacher, tokenizer)
    known = backbone.state_dict().keys()
    backbone.load_state_dict({name: tensor.clone() for name, tensor in state.items() if name in known})
    return SentenceEncoder(
        backbone,
        tokenizer,
        pooling=teacher.pooling,
        projection=deepcopy(teacher.projection),  # a student that learns leaves its teacher as it is
        max_tokens=teacher.max_tokens,
    ).to(teacher.device)


def _config_like(old: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, positions: int) -> XLMRobertaConfig:
    return xlmr_config(
        tokenizer,
        hidden_size=old.hidden_size,
        num_hidden_layers=old.num_hidden_layers,
        num_attention_heads=old.num_attention_heads,
        intermediate_size=old.intermediate_size,
        hidden_act=old.hidden_act,
        layer_norm_eps=old.layer_norm_eps,
        hidden_dropout_prob=old.hidden_dropout_prob,
        attention_probs_dropout_prob=old.attention_probs_dropout_prob,
        max_position_embeddings=positions + POSITION_OFFSET,
    )


def xlmr_config(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> XLMRobertaConfig:
    """The configuration of an XLM-R with this vocabulary and these sizes."""
    return XLMRobertaConfig(
        vocab_size=len(tokenizer),
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **sizes,
    )


def _token_vectors(teacher: SentenceEncoder, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """For each new token the mean of the teacher's vectors of its pieces, (tokens, dim)."""
    old = cast(nn.Embedding, teacher.backbone.get_input_embeddings()).weight.detach().cpu()  # (pieces, dim)
    counterparts = {
        getattr(tokenizer, role): getattr(teacher.tokenizer, f"{role}_id")
        for role in ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
    }
    pieces_of = _piece_reader(teacher.tokenizer)
    rows = [
        old[pieces_of(token) if counterparts.get(token) is None else [counterparts[token]]].mean(dim=0)
        for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ]
    return torch.stack(rows)


def _piece_reader(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], list[int]]:
    """Cuts a new token's text as the teacher would, at the start of a word or inside it.

    Inside a word WordPiece writes `##ing` where unigram pieces say `ing`; at its start byte-level pieces hold a space.
    """
    vocabulary = tokenizer.get_vocab()
    normalizer = tokenizer.backend_tokenizer.normalizer

    def pieces_of(token: str) -> list[int]:
        starts_word, text = token.startswith(WORD_START), token.removeprefix(WORD_START)
        inside = normalizer.normalize_str(text) if normalizer else text
        same = [token] if starts_word else [f"##{inside}", token]
        known = [vocabulary[piece] for piece in same if piece in vocabulary]
        if known:
            return known[:1]
        pieces: list[int] = tokenizer(f" {text}" if starts_word else text, add_special_tokens=False).input_ids
        return pieces or [tokenizer.unk_token_id]

    return pieces_of


def keep_layers(backbone: PreTrainedModel, count: int) -> None:
    """Keeps `count` layers of the network, evenly spread, the first and the last among them; of one, the first.

    The last ones shape the vectors: of all-MiniLM-L6-v2, without training, layers 1, 3, 4 and 6 score 0.80 on STSb
    (English test set, Spearman) and the first four 0.60; all six score 0.82.
    Raises RequestError when it has fewer, or shares its layers as ALBERT does.
    """
    path = next((path for path in STACKS if isinstance(dict(backbone.named_modules()).get(path), nn.ModuleList)), None)
    if path is None:
        raise RequestError(f"layers: cannot drop layers of a {backbone.config.model_type!r} network")
    parent, _, name = path.rpartition(".")
    stack = cast(nn.ModuleList, backbone.get_submodule(path))
    if count > len(stack):
        raise RequestError(f"layers: expected at most the {len(stack)} of the base, found {count}")
    kept = np.linspace(0, len(stack) - 1, count).round().astype(int).tolist()
    setattr(backbone.get_submodule(parent), name, nn.ModuleList([stack[index] for index in kept]))
    backbone.config.num_hidden_layers = count


def set_dropout(backbone: PreTrainedModel, share: float) -> None:
    """Sets every dropout of the network to `share`; the saved configuration stays the base's own."""
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.p = share


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
    other lengths than 1, a projection is trained; it starts as the ridge regression from the student's vectors to
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
    return bare, before_and_after(before, counts(bare))


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
    """An XLM-R with random weights and a unigram vocabulary trained on the corpus."""
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
    vectors: NDArray[np.float32] = pooled.to(default_device()).encode(sentences, precision="fp32")
    return vectors.astype(np.float64)
