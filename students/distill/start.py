"""The start of a student: a pretrained model, a new network, or the teacher's layers under a new vocabulary."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.model.dropout import set_dropout
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.model.new import WORD_START, layer_sizes, new_network, train_unigram
from bertrelay.model.pooling import Projection, linear_projection
from bertrelay.model.settings import NewEncoder
from bertrelay.process_group import main_first
from bertrelay.progress import spinner
from bertrelay.stage import Metrics, StageContext
from students.compress.pruning import keep_layers, keep_neurons
from students.compress.vocabulary import trim_vocabulary
from students.distill.settings import DistillSettings, TeacherCopy
from students.distill.targets import Targets
from students.evaluate.translation import before_and_after, counts
from students.parallel.corpus import ParallelCorpus
from students.teacher import VectorTable, prompt_of

POSITION_OFFSET = 2  # XLM-R counts positions from its padding id 1, plus one
WITH_OFFSET = ("roberta", "xlm-roberta")
COPIED = ("bert", *WITH_OFFSET)
COPIED_CONFIG = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
ROLES = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
VOCABULARY_SENTENCES = 500_000  # enough to learn pieces from; they are held in memory
FITTED_SENTENCES = 32_768
RIDGE = 0.01  # of the vectors' mean square
UNTRAINED_RIDGE = 1.0  # an untrained student's thin directions would be blown up with less
SOFTENING = 0.25
"""The power of a fitted map's singular values with which a pretrained base starts; 1 is the ridge regression, which
throws away what the corpus does not show, and 0 an orthogonal map, which keeps all and learns next to nothing."""
START = "start"  # the student before its first step, in the stage's work folder
SIZES = "sizes.json"  # beside a start that is whole


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
    sizes = {name: getattr(old, name) for name in COPIED_CONFIG}
    backbone = XLMRobertaModel(xlmr_config(tokenizer, len(positions), **sizes))
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


def xlmr_config(tokenizer: PreTrainedTokenizerFast, positions: int, **sizes: Any) -> XLMRobertaConfig:
    """The configuration of an XLM-R that reads so many positions, with this vocabulary and these sizes."""
    return XLMRobertaConfig(
        max_position_embeddings=positions + POSITION_OFFSET,
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
    special = {getattr(tokenizer, role): getattr(teacher.tokenizer, f"{role}_id") for role in ROLES}
    vocabulary = teacher.tokenizer.get_vocab()
    rows = [
        old[_pieces_of(token, teacher.tokenizer, vocabulary) if special.get(token) is None else [special[token]]]
        for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ]
    return torch.stack([row.mean(dim=0) for row in rows])


def _pieces_of(token: str, tokenizer: PreTrainedTokenizerFast, vocabulary: Mapping[str, int]) -> list[int]:
    """The ids into which the teacher cuts the text of a new token, at the start of a word or inside it.

    Inside a word WordPiece writes `##ing` where unigram pieces say `ing`; at its start byte-level pieces hold a space.
    """
    starts_word, text = token.startswith(WORD_START), token.removeprefix(WORD_START)
    normalizer = tokenizer.backend_tokenizer.normalizer
    inside = normalizer.normalize_str(text) if normalizer else text
    for same in [token] if starts_word else [f"##{inside}", token]:
        if same in vocabulary:
            return [vocabulary[same]]
    pieces: list[int] = tokenizer(f" {text}" if starts_word else text, add_special_tokens=False).input_ids
    return pieces or [tokenizer.unk_token_id]


def start_student(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    teacher: SentenceEncoder | VectorTable,
    targets: Targets,
    context: StageContext,
    precision: ComputePrecision,
) -> tuple[SentenceEncoder, Metrics]:
    """The student before its first step, made by one process and kept: a resumed run does not trim and fit again.

    Returns the sizes of a base that was made smaller too, before and after.
    """
    folder = context.work / START
    with main_first(context.process_group):
        sizes = read_json(folder / SIZES)
        if sizes is None:
            student, sizes = _made_student(settings, corpus, teacher, targets, context, precision)
            student.save(folder)
            write_json(folder / SIZES, sizes)
    student = SentenceEncoder.load(folder)
    if settings.dropout is not None:
        set_dropout(student.backbone, settings.dropout)
    return student, sizes


def _made_student(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    teacher: SentenceEncoder | VectorTable,
    targets: Targets,
    context: StageContext,
    precision: ComputePrecision,
) -> tuple[SentenceEncoder, Metrics]:
    """The student before its first step, which gives vectors of the teacher's size and scale.

    The student of a unit-norm teacher ends in a normalisation. Where sizes differ, or the teacher's vectors have
    other lengths than 1, a projection is trained; it starts as the regression from the student's vectors to the
    teacher's, so that no step is lost, and no second moment of Adam spoilt, on finding mean and scale.
    """
    if isinstance(settings.base, NewEncoder):
        size = settings.base
        tokenizer = train_unigram(_sample(corpus), size.vocabulary, size.max_tokens)
        config = xlmr_config(tokenizer, size.max_tokens, **layer_sizes(size))
        bare = SentenceEncoder(new_network(XLMRobertaModel, config, size, settings.seed), tokenizer)
    elif isinstance(settings.base, TeacherCopy):
        assert isinstance(teacher, SentenceEncoder)  # the settings refuse layers of vectors
        bare = copy_of(teacher, train_unigram(_sample(corpus), settings.base.vocabulary, settings.max_tokens))
    else:
        bare = SentenceEncoder.load(settings.base, backend="torch", cache=context.cache, is_base=True)
    bare.prompts, bare.truncate_dim = prompts_of(settings, bare), None  # the teacher's vectors decide the size
    before, sizes = counts(bare), Metrics()
    if settings.trim_vocabulary:
        bare = trim_vocabulary(bare, corpus)
    if settings.layers:
        keep_layers(bare, settings.layers, corpus, precision)
    if settings.intermediate_size:
        keep_neurons(bare, settings.intermediate_size, corpus)
    if settings.trim_vocabulary or settings.layers or settings.intermediate_size:
        sizes = before_and_after(before, counts(bare))
    needs_fit = bare.dim != teacher.dim or not targets.is_unit
    student = SentenceEncoder(
        bare.backbone,
        bare.tokenizer,
        pooling=bare.pooling,
        projection=None if needs_fit else bare.projection,
        normalize=targets.is_unit,
        max_tokens=min(settings.max_tokens, bare.max_tokens),
        prompts=bare.prompts,
    )
    if needs_fit:
        is_pretrained = not isinstance(settings.base, NewEncoder | TeacherCopy)
        student.projection = fitted_projection(student, corpus, targets, is_pretrained=is_pretrained)
    return student, sizes


def prompts_of(settings: DistillSettings, base: SentenceEncoder) -> Prompts:
    """The student's prompts: the one it is trained with, by default, for queries and for documents; or none."""
    text = prompt_of(settings.student_prompt, base, "student_prompt")
    if text is None:
        return Prompts()
    name = settings.student_prompt if isinstance(settings.student_prompt, str) else "default"
    return Prompts({name: text, "query": text, "document": text}, default=name)


def _sample(corpus: ParallelCorpus) -> Iterator[str]:
    """The corpus, or sentences evenly spread over it when it is large."""
    return islice(corpus, 0, None, -(-len(corpus) // VOCABULARY_SENTENCES))


@spinner("fitting the start")
def fitted_projection(
    student: SentenceEncoder, corpus: ParallelCorpus, targets: Targets, *, is_pretrained: bool
) -> Projection:
    """A linear map from the student's pooled vectors before its first step to the teacher's, fitted on a sample.

    It is a ridge regression. For a pretrained base its singular values are evened out: what the base knows of
    sentences that are unlike the corpus stays in the vectors, and those of the corpus are nearly as close.
    Items are spread evenly over the corpus and count as they do in the loss, so what it starts from is at most 1.
    """
    items = np.unique(np.linspace(0, corpus.taught - 1, FITTED_SENTENCES).astype(np.int64))
    sentences = [corpus.texts(item, item + 1)[0] for item in items.tolist()]
    share = corpus.weights_of(items) / corpus.weights_of(items).sum()  # (sentences,)
    bare = student.with_parts(projection=None, normalize=False)
    vectors = bare.to(default_device()).encode(sentences, precision="fp32").astype(np.float64)  # (sentences, pooled)
    wanted = targets.vectors[corpus.rows(items)].astype(np.float64)  # (sentences, dim)
    centre, wanted_centre = share @ vectors, share @ wanted
    weighted = share[:, None] * (vectors - centre)  # (sentences, pooled)
    covariance, cross = weighted.T @ (vectors - centre), weighted.T @ (wanted - wanted_centre)
    ridge = (RIDGE if is_pretrained else UNTRAINED_RIDGE) * np.trace(covariance) / len(covariance)
    weight = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), cross)  # (pooled, dim)
    if is_pretrained:
        weight = _softened(weight, covariance, cross)
    return linear_projection(torch.from_numpy(weight.T), torch.from_numpy(wanted_centre - centre @ weight))


def _softened(weight: NDArray[np.float64], covariance: NDArray[np.float64], cross: NDArray[np.float64]) -> Any:
    """The map with its singular values to the power SOFTENING, scaled to be the nearest to the targets."""
    left, sizes, right = np.linalg.svd(weight, full_matrices=False)
    softened = (left * sizes**SOFTENING) @ right  # (pooled, dim)
    return softened * ((softened * cross).sum() / (softened * (covariance @ softened)).sum())
