"""The start of a student: a pretrained model, a new network, the teacher's layers, or a table of token vectors."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.model.dropout import set_dropout
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.model.new import WORD_START, layer_sizes, new_network, train_unigram
from bertrelay.model.settings import NewEncoder
from bertrelay.process_group import main_first
from bertrelay.stage import Metrics, StageContext
from students.compress.pruning import keep_layers, keep_neurons
from students.compress.sizes import before_and_after, counts
from students.compress.vocabulary import trim_vocabulary
from students.distill.head import fit_hidden_head, fit_linear_head
from students.distill.settings import DistillSettings, StaticBase, TeacherCopy
from students.distill.static import create_static, fold_projection
from students.distill.targets import Targets
from students.parallel.corpus import ParallelCorpus
from students.teacher import OpenedTeacher, resolve_prompt

POSITION_OFFSET = 2  # XLM-R counts positions from its padding id 1, plus one
WITH_OFFSET = ("roberta", "xlm-roberta")
COPIED = ("bert", *WITH_OFFSET)
COPIED_CONFIG = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
ROLES = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
VOCABULARY_SENTENCES = 500_000  # enough to learn subwords from; they are held in memory
START = "start"
"""Folder, in the stage's work folder, of the student before its first step."""
SIZES = "sizes.json"
"""File in that folder, written last: a start that has it is complete."""


def copy_of(teacher: SentenceEncoder, tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    """An XLM-R with the teacher's layers, pooling and projection, and a new vocabulary.

    A new token's vector is the mean of the teacher's vectors of the subwords into which it tokenizes the token's text:
    with a BERT teacher that knows `dog` and `##s`, `▁dogs` starts as (dog + ##s) / 2. Rows of positions move to XLM-R's
    offset. The first row of token types stays, because a sentence encoder sees only that type.
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
    backbone = XLMRobertaModel(xlmr_config(tokenizer, len(positions), sizes))
    unused = torch.zeros(POSITION_OFFSET, positions.shape[1])
    state["embeddings.position_embeddings.weight"] = torch.cat([unused, positions])
    state["embeddings.token_type_embeddings.weight"] = state["embeddings.token_type_embeddings.weight"][:1]
    state["embeddings.word_embeddings.weight"] = _token_vectors(teacher, tokenizer)
    names = backbone.state_dict().keys()
    backbone.load_state_dict({name: tensor.clone() for name, tensor in state.items() if name in names})
    return SentenceEncoder(
        backbone,
        tokenizer,
        pooling=teacher.pooling,
        projection=deepcopy(teacher.projection),  # a student that learns leaves its teacher as it is
        max_tokens=teacher.max_tokens,
    ).to(teacher.device)


def xlmr_config(tokenizer: PreTrainedTokenizerFast, positions: int, sizes: Mapping[str, Any]) -> XLMRobertaConfig:
    """The configuration of an XLM-R with the vocabulary of `tokenizer` that reads up to `positions` tokens.

    sizes: other keys of the configuration, such as `hidden_size`.
    """
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
    """For each new token the mean of the teacher's vectors of its subwords, (tokens, dim)."""
    old = cast(nn.Embedding, teacher.backbone.get_input_embeddings()).weight.detach().cpu()  # (subwords, dim)
    special = {getattr(tokenizer, role): getattr(teacher.tokenizer, f"{role}_id") for role in ROLES}
    vocabulary = teacher.tokenizer.get_vocab()
    rows = [
        old[_subwords(token, teacher.tokenizer, vocabulary) if special.get(token) is None else [special[token]]]
        for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ]
    return torch.stack([row.mean(dim=0) for row in rows])


def _subwords(token: str, tokenizer: PreTrainedTokenizerFast, vocabulary: Mapping[str, int]) -> list[int]:
    """The teacher's ids of the text of a new token, at the start of a word or inside it.

    Inside a word WordPiece writes `##ing` where a unigram vocabulary has `ing`; at its start byte-level subwords hold
    a space.
    """
    starts_word, text = token.startswith(WORD_START), token.removeprefix(WORD_START)
    normalizer = tokenizer.backend_tokenizer.normalizer
    inside = normalizer.normalize_str(text) if normalizer else text
    for same in [token] if starts_word else [f"##{inside}", token]:
        if same in vocabulary:
            return [vocabulary[same]]
    ids: list[int] = tokenizer(f" {text}" if starts_word else text, add_special_tokens=False).input_ids
    return ids or [tokenizer.unk_token_id]


def start_student(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    teacher: OpenedTeacher,
    targets: Targets,
    context: StageContext,
    precision: ComputePrecision,
) -> tuple[SentenceEncoder, Metrics]:
    """The student before its first step. One process creates it and saves it, so that a resumed run only loads it.

    Returns it with the sizes, before and after, of a base that was made smaller.
    """
    folder = context.work / START
    with main_first(context.process_group):
        sizes = read_json(folder / SIZES)
        if sizes is None:
            base = create_base(settings, corpus, teacher, context.cache)
            smaller, sizes = shrink_base(base, settings, corpus, precision)
            fit_to_teacher(smaller, settings, corpus, teacher, targets, precision).save(folder)
            write_json(folder / SIZES, sizes)
    student = SentenceEncoder.load(folder)
    if settings.dropout is not None:
        set_dropout(student.backbone, settings.dropout)
    return student, sizes


def create_base(
    settings: DistillSettings, corpus: ParallelCorpus, teacher: OpenedTeacher, cache: Cache
) -> SentenceEncoder:
    """A new network, the teacher's layers under a new vocabulary, or a pretrained model; with the student's prompt.

    Of a static student it is the model whose tokenizer and token vectors it is made of.
    """
    if isinstance(settings.base, NewEncoder):
        size = settings.base
        tokenizer = train_unigram(_sample(corpus), size.vocabulary, size.max_tokens)
        config = xlmr_config(tokenizer, size.max_tokens, layer_sizes(size))
        base = SentenceEncoder(new_network(XLMRobertaModel, config, size, settings.seed), tokenizer)
    elif isinstance(settings.base, TeacherCopy):
        assert isinstance(teacher.model, SentenceEncoder)  # the settings refuse layers of a file of vectors
        base = copy_of(teacher.model, train_unigram(_sample(corpus), settings.base.vocabulary, settings.max_tokens))
    else:
        source = settings.base.static if isinstance(settings.base, StaticBase) else settings.base
        base = SentenceEncoder.load(source, backend="torch", cache=cache, is_base=True)
    base.prompts = student_prompts(settings, base)
    base.truncate_dim = None  # the size of the student's vectors is that of the teacher's
    return base


def student_prompts(settings: DistillSettings, base: SentenceEncoder) -> Prompts:
    """The prompt that the student is trained with, as its default and for queries and documents; or none."""
    text = resolve_prompt(settings.student_prompt, base, "student_prompt")
    if text is None:
        return Prompts()
    name = settings.student_prompt if isinstance(settings.student_prompt, str) else "default"
    return Prompts({name: text, "query": text, "document": text}, default=name)


def shrink_base(
    base: SentenceEncoder, settings: DistillSettings, corpus: ParallelCorpus, precision: ComputePrecision
) -> tuple[SentenceEncoder, Metrics]:
    """Leaves out tokens, layers and neurons as the settings say, or all but a table of token vectors.

    Returns the sizes before and after where they do.
    """
    before = counts(base)
    if settings.trim_vocabulary:
        base = trim_vocabulary(base, corpus)
    if settings.layers:
        keep_layers(base, settings.layers, corpus, precision)
    if settings.intermediate_size:
        keep_neurons(base, settings.intermediate_size, corpus)
    if isinstance(settings.base, StaticBase):
        base = create_static(base, corpus, settings.base.dim, precision)
    is_smaller = base.is_static or settings.trim_vocabulary or settings.layers or settings.intermediate_size
    return base, before_and_after(before, counts(base)) if is_smaller else {}


def fit_to_teacher(
    base: SentenceEncoder,
    settings: DistillSettings,
    corpus: ParallelCorpus,
    teacher: OpenedTeacher,
    targets: Targets,
    precision: ComputePrecision,
) -> SentenceEncoder:
    """A student whose vectors have the size and scale of the teacher's.

    With a unit-norm teacher it ends in a normalisation. Where sizes differ, or the teacher's vectors have other lengths
    than 1, it gets a projection that starts as the regression from its vectors to the teacher's, so that training does
    not spend steps, or Adam's state, on learning mean and scale. With `head_neurons` it gets two, which are fitted.
    """
    is_pretrained, is_static = not isinstance(settings.base, NewEncoder | TeacherCopy), base.is_static
    needs_projection = base.dim != teacher.dim or not targets.is_unit or settings.head_neurons is not None or is_static
    student = SentenceEncoder(
        base.backbone,
        base.tokenizer,
        pooling=base.pooling,
        projection=None if needs_projection else base.projection,
        normalize=targets.is_unit,
        max_tokens=base.max_tokens if is_static else min(settings.max_tokens, base.max_tokens),
        prompts=base.prompts,
        spaces=teacher.spaces,
    )
    if settings.head_neurons:
        student.projection = fit_hidden_head(student, corpus, targets, settings.head_neurons, precision, settings.seed)
    elif needs_projection:
        student.projection = fit_linear_head(student, corpus, targets, is_pretrained=is_pretrained)
    if isinstance(settings.base, StaticBase) and settings.base.dim is None:
        return fold_projection(student)
    return student


def _sample(corpus: ParallelCorpus) -> Iterator[str]:
    """Yields the sentences of the corpus; of a large one VOCABULARY_SENTENCES that are evenly spread."""
    return islice(corpus, 0, None, -(-len(corpus) // VOCABULARY_SENTENCES))
