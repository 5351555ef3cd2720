"""Settings of linking: of dictionaries, of a linker, of its evaluation, and of pairs to train its encoder; no torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.data.tables import Column
from bertrelay.settings import (
    BatchTokens,
    DataSource,
    EncoderSource,
    InputFile,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    Seed,
    Settings,
    UsedWith,
    refuse_idle,
)
from domain.biomedical.documents.formats import AnnotatedSource

DictionaryFormat = Literal["table", "terms", "obo", "mesh", "rrf"]
Share = Annotated[float, Field(ge=0, le=1)]


class DictionarySource(DataSource):
    """Concepts of a terminology with their names."""

    path: InputFile
    """File, or `@stage/path`; packed with gzip or not."""
    format: DictionaryFormat | None = None
    """`terms` has lines `id|id||name|name`; `obo` is an ontology; `mesh` MeSH's XML of descriptors or supplementary
    records; `rrf` UMLS's MRCONSO.RRF; `table` is CSV, TSV, JSONL or Parquet. By the file's name when absent."""
    columns: Annotated[list[Column], Field(min_length=2, max_length=2)] = ["identifier", "name"]
    """Columns of identifier and name of a table, a name in a row."""
    languages: list[str] = ["ENG"]
    """Languages of `rrf` whose names are read; all when empty."""

    @model_validator(mode="after")
    def _settings_of_the_format(self) -> Self:
        if self.format not in (None, "table"):
            refuse_idle(self, "columns", because=f"a dictionary of format {self.format} has none")
        if self.format not in (None, "rrf"):
            refuse_idle(self, "languages", because="only rrf has languages")
        return self


class LinkerSettings(Settings):
    """A linker: the names of a terminology, their vectors, and the least score of a link."""

    dictionary: Annotated[list[DictionarySource], Field(min_length=1)]
    """Terminologies whose concepts mentions are linked to."""
    encoder: EncoderSource
    """Sentence encoder of the names: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    mentions: list[AnnotatedSource] = []
    """Annotated files whose mentions become names of their concepts, as in published figures."""
    dev: list[AnnotatedSource] = []
    """Annotated files that choose the share of letters in a score, and the least score of a link."""
    types: list[str] = []
    """Types of entities of `mentions` and `dev` that count; all when empty."""
    ignored_prefixes: list[str] = ["MESH:", "OMIM:"]
    """Beginnings of identifiers that do not count, as one file has `MESH:D003924` and another `D003924`."""
    letters: Share | None = None
    """Share of the score that is the likeness in letters, the rest being the cosine of the vectors; chosen on `dev`
    when absent, else 0.2."""
    threshold: Share | None = None
    """Least score of a link; a mention below it gets no identifier. Chosen on `dev` when absent, else 0."""
    max_rejects: MaxRejects = 0.01
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""


class LinkEvaluateSettings(Settings):
    """Evaluation of a linker on annotated files: the identifiers of their entities, whose places are as annotated."""

    model: ModelSource
    """Linker: a folder, or `@stage/model`."""
    test: Annotated[list[AnnotatedSource], Field(min_length=1)]
    """Annotated files."""
    types: list[str] = []
    """Types of entities that count; all when empty."""
    max_rejects: MaxRejects = 0.01
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""


class SynonymPairsSettings(Settings):
    """Pairs of names of one concept, which a sentence encoder is trained on."""

    dictionary: Annotated[list[DictionarySource], Field(min_length=1)]
    """Terminologies."""
    mentions: list[AnnotatedSource] = []
    """Annotated files whose mentions become names of their concepts."""
    types: list[str] = []
    """Types of entities of `mentions` that count; all when empty."""
    ignored_prefixes: list[str] = ["MESH:", "OMIM:"]
    """Beginnings of identifiers that do not count."""
    pairs_per_concept: Positive = 50
    """Most pairs of a concept, as SapBERT draws them."""
    encoder: EncoderSource | None = None
    """Encoder that finds hard negatives: for each pair the name of another concept that is nearest to its first name;
    no negatives when absent."""
    dev_share: Share = 0.05
    """Share of the concepts whose pairs are written to `dev.jsonl` in place of `train.jsonl`."""
    seed: Seed = 1
    max_rejects: MaxRejects = 0.01
    precision: Annotated[Precision, UsedWith("encoder")] = "auto"
    batch_tokens: Annotated[BatchTokens, UsedWith("encoder")] = None
    """Subwords in a batch, padding included; chosen by the device when absent."""
