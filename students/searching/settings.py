"""Settings of search; free of torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Column, Table
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.settings import BatchTokens, EncoderSource, MaxRejects, Positive, Precision, Settings

ApproximateKind = Literal["hnsw", "int8", "binary"]
SearchKind = Literal["exact", ApproximateKind]
IndexKind = Literal["auto", SearchKind]
SearchMode = Literal["dense", "lexical", "hybrid"]
"""Search by vectors, by words (BM25), or by both, fused by reciprocal rank."""
LexicalWeight = Annotated[float, Field(ge=0, le=1)]
"""Weight of the ranking by words where two are fused; .5 weighs both alike."""

EXACT_UP_TO = 100_000
"""Most sentences that `auto` searches exactly, in some tens of milliseconds a query."""


def index_beside(corpus: str | Path) -> Path:
    """Names the folder of a corpus's index, where none is given."""
    return Path(f"{corpus}.index")


class Hnsw(Settings):
    """Graph of an approximate index (Malkov & Yashunin, 2016). Larger numbers find more and take longer."""

    links: Annotated[int, Field(ge=2, le=1024)] = 32
    """Links of each vector on each level, twice as many on the lowest (their M); memory grows with it."""
    ef_construction: Positive = 100
    """Candidates considered while a vector is linked."""
    ef_search: Positive = 100
    """Candidates considered while a query is answered."""


class EncodedCorpus(Settings):
    """Options of an index in recipes and in Python."""

    show: list[Column] = []
    """Columns of the corpus that hits can show, by name, or by position from 0; an index gets more of them without
    encoding it a second time."""
    id_column: Column | None = None
    """Column of identifiers, by which texts can be replaced and deleted; that of an existing index when absent."""
    lexical: bool = False
    """Index the words too, for search by them: `--mode lexical` and `hybrid`."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None


class IndexOptions(EncodedCorpus):
    """Options of building an index."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kind: IndexKind = "auto"
    """`auto` takes the kind that was built last; without an index it is exact up to 100,000 sentences and int8 beyond.
    Another kind is built beside the existing one, and the index returned searches by it."""
    hnsw: Hnsw | None = None
    """Graph of kind hnsw; an existing one with other links is replaced."""
    prompt_name: str | None = None
    """Name of the model's prompt that precedes each sentence; when absent that for documents, or the default."""
    query_prompt_name: str | None = None
    """Name of the prompt of each query; it is checked before anything is encoded."""
    rebuild: bool = False
    """Build anew, and then replace an existing index; resumes."""
    verify: bool = False
    """Read every file, the corpus too, instead of trusting size and time of untouched ones."""
    cache: Cache | None = None
    """Folder of models and data sets from the hub."""
    process_group: ProcessGroup = SINGLE_PROCESS
    """Processes that encode, each its part of the blocks; the main one does the rest."""
    rejects: Rejects | None = None
    """Context manager, entered while the corpus is read; without it the first record that cannot be used raises."""


class IndexSettings(EncodedCorpus):
    """An index of a corpus, written to `index/`, for `bertrelay search MODEL --index`."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    corpus: Table
    """One column of text: plain lines, `text` of a table, or the column it names."""
    kind: IndexKind = "auto"
    """`exact` compares a query with every vector, `hnsw` walks a graph; `int8` and `binary` compare it with vectors of
    fewer bits in memory, and the best in float32 from the disk; `auto` is exact up to 100,000 sentences, and int8
    beyond."""
    hnsw: Hnsw = Hnsw()
    """Graph of kind hnsw: `links`, `ef_construction`, `ef_search`."""
    prompt: str | None = None
    """Name of the model's prompt that precedes each sentence; when absent that for documents (`document`, `passage`,
    `corpus`) of a model that has one for queries too and no default, else the default."""
    max_rejects: MaxRejects = 0.01
