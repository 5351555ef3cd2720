"""Settings of everything that only repeats the SBERT paper, and the names of its sets; free of torch."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.model.settings import Base, PoolingMode
from bertrelay.settings import (
    EncoderSource,
    InputFile,
    MaxRejects,
    MaxTokens,
    ModelSource,
    Positive,
    Precision,
    Seed,
    Settings,
    UsedWith,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from teachers.evaluation.settings import LocalTasks, MtebTasks, check_tasks
from teachers.pairs.settings import PairSettings
from teachers.settings import CONCATENATIONS, Concatenation, LabelledTraining, Poolings

Protocol = Literal["sts", "senteval", "facets", "sections", "mteb"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

SETS: dict[str, tuple[str, ...]] = {
    "sts": ("STS12", "STS13", "STS14", "STS15", "STS16", "STSb", "SICK-R"),
    "senteval": ("MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC"),
    "facets": ("AFS",),
    "sections": ("sections",),
    "mteb": (),  # tasks, which have names of their own
}

OF_PAPERS = UsedWith(protocols=tuple(protocol for protocol in PROTOCOLS if SETS[protocol]))


class ProtocolSettings(Settings):
    """The evaluation of an encoder by protocols of the SBERT paper or tasks of mteb, without training.

    Vectors come from exactly one of `model`, `glove`, `bilstm` and `tfidf`.
    """

    model: EncoderSource | None = None
    """Any encoder; a plain BERT gives the mean of its token vectors."""
    pooling: Annotated[Poolings | None, UsedWith("model")] = None
    """Pooling in place of the model's own: `["cls"]` for the vector of [CLS]."""
    truncate_dim: Annotated[Positive | None, UsedWith("model")] = None
    """Number of dimensions to which vectors are cut."""
    glove: InputFile | None = None
    """Text file of word vectors, a word and its values in each line, also `.gz`; a sentence is their mean."""
    bilstm: InputFile | None = None
    """Folder that a training of InferSent's encoder wrote."""
    tfidf: bool = False
    """Count words, weighted by their rarity in the set that is scored."""
    precision: Annotated[Precision, UsedWith("model")] = "fp32"
    """fp32, as for published results; `auto` is faster, and moves a correlation by some 0.001."""
    protocols: Annotated[list[Protocol], Field(min_length=1)]
    """`sts` (STS12 to 16, STSb, SICK-R), `senteval` (seven classifications), `facets` (Argument Facet Similarity),
    `sections` (triplets of Wikipedia sections), `mteb` (tasks of the package of that name)."""
    data: Annotated[InputFile | None, OF_PAPERS] = None
    """Folder that has the official files, at any depth; mteb needs none."""
    sets: Annotated[list[str], OF_PAPERS] = []
    """Names of sets, such as STSb or MRPC, all of which must exist, at least one of each protocol; when empty, every
    set that exists."""
    folds: Annotated[int, Field(ge=2), OF_PAPERS] = 10
    """Folds of the classifications without a test set."""
    seed: Annotated[Seed, OF_PAPERS] = 0
    """Seed of the classifications without a test set."""
    tasks: Annotated[MtebTasks, UsedWith(protocols="mteb")] = []
    """Tasks of mteb by name, such as STS17, or a whole benchmark; their data come from the hub."""
    local: Annotated[LocalTasks, UsedWith(protocols="mteb")] = []
    """Tasks of mteb's kind on local files."""
    languages: Annotated[list[LanguageCode], EachOnce, UsedWith(protocols="mteb")] = []
    """Only the subsets of mteb's tasks that are in these languages; all subsets when empty."""
    max_rejects: MaxRejects = 0.01

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.model, self.glove, self.bilstm, self.tfidf))) != 1:
            raise ValueError("expected exactly one of model, glove, bilstm and tfidf")
        return self

    @model_validator(mode="after")
    def _known_sets(self) -> Self:
        names = [name for protocol in self.protocols for name in SETS[protocol]]
        if unknown := [name for name in self.sets if name not in names]:
            raise ValueError(f"sets: expected some of {', '.join(names)}; found {', '.join(unknown)}")
        for protocol in self.protocols:
            if self.sets and SETS[protocol] and not set(self.sets) & set(SETS[protocol]):
                raise ValueError(
                    f"sets: expected at least one of each protocol, found none of {protocol}, which has "
                    f"{', '.join(SETS[protocol])}; name one, or leave that protocol out"
                )
        return self

    @model_validator(mode="after")
    def _data_of_the_protocols(self) -> Self:
        of_papers = [protocol for protocol in self.protocols if SETS[protocol]]
        if of_papers and self.data is None:
            raise ValueError(f"data: expected the folder of the official files of {', '.join(of_papers)}, found none")
        if "mteb" in self.protocols:
            check_tasks(self.tasks, self.local)
        if "mteb" in self.protocols and self.model is None:
            raise ValueError("model: expected an encoder for the protocol mteb, found none")
        return self


class FacetSettings(TrainingSettings):
    """For comparison with the papers: Argument Facet Similarity, trained on some pairs and tested on the others."""

    learner: Literal["encoder", "cross-encoder"] = "encoder"
    """`encoder`, tested by its cosines, or `cross-encoder`, which reads both arguments at once, by its scores."""
    base: Base
    """A model to start from, or the size of a new one."""
    data: InputFile
    """Folder that has the three official files, at any depth."""
    split: Literal["ten-fold", "cross-topic"] = "ten-fold"
    """`ten-fold` tests on each tenth of all pairs after training on the other nine; `cross-topic` on each topic after
    training on the other two."""
    folds: Annotated[int, Field(ge=2), UsedWith(split="ten-fold")] = 10
    """Number of folds."""
    batch_items: Positive | None = 16
    pooling: Annotated[Poolings | None, UsedWith(learner="encoder")] = None
    """Pooling of the token vectors; that of the base when absent."""
    max_tokens: MaxTokens | None = None
    """Longest input; that of the base when absent. A cross-encoder reads 256 tokens at most."""

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        refuse_idle(self, "evaluate_every", "patience", because="all pairs are for training or test, none is dev data")
        if self.learner == "cross-encoder" and not isinstance(self.base, ModelSource):
            raise ValueError("base: expected a model for a cross-encoder to start from, found the size of a new one")
        return self


class AblationSettings(TrainingSettings):
    """For comparison with the papers: a training for each pooling under two objectives, and for each concatenation."""

    base: Base
    """A model to start from, or the size of a new one."""
    data: InputFile
    """Folder that has SICK and the STS benchmark in their official files, at any depth: softmax learns the labels of
    SICK_train.txt, cosine the scores of sts-train.csv, and both are scored on sts-dev.csv."""
    part: Literal["dev", "test"] = "dev"
    """Part of the STS benchmark to score on; the paper's tables are those of dev."""
    nli: list[Table] = []
    """Tables of premise, hypothesis and label for softmax to learn in place of SICK."""
    poolings: list[PoolingMode] = ["mean", "max", "cls"]
    """Poolings to train, each under both objectives."""
    concatenations: list[Concatenation] = [list(parts) for parts in CONCATENATIONS]
    """Concatenations to train, each under softmax and mean pooling."""
    batch_items: Positive | None = 16
    max_tokens: MaxTokens | None = None
    """Longest input, special tokens included; that of the base when absent."""
    max_rejects: MaxRejects = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        refuse_idle(self, "evaluate_every", "patience", because="each training takes all its steps")
        return self


class PolyEncoderSettings(PairSettings):
    """For comparison with the papers: a poly-encoder; its base is an encoder of one pooling without a projection."""

    codes: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Number of learned codes that attend to the first sentence."""


class BiLstmSettings(LabelledTraining):
    """For comparison with the papers: InferSent's encoder, which learns labelled pairs.

    Defaults are near those of its paper, except for the optimiser.
    """

    glove: InputFile
    """Text file of word vectors; the model has those of the words in train and dev."""
    train: Annotated[list[Table], Field(min_length=1)]
    """Tables of premise, hypothesis and label, or with the `columns` that they name."""
    dev: list[Table] = []
    """Held-out tables of the same kind; accuracy on them selects the best weights."""
    hidden: Annotated[int, Field(ge=1, le=65_536)] = 2_048
    """Units of each direction; a sentence vector has twice as many."""
    concatenation: Concatenation = ["u", "v", "|u-v|", "u*v"]
    """Input of the linear map of the softmax objective."""
    batch_items: Positive | None = 64
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
