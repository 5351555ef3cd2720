"""The settings of evaluating a student; free of torch."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.settings import (
    EncoderSource,
    InputFile,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    Settings,
    UsedWith,
    refuse_idle,
)
from students.mining.settings import MiningTest
from students.parallel.settings import ENGLISH, LanguageChoice, UnlimitedSources
from students.searching.settings import SearchMode
from students.settings import Prompt, Teacher, prompt_problems
from teachers.settings import StsSets


def _two_languages(pair: list[str]) -> list[str]:
    if pair[0] == pair[1]:
        raise ValueError(f"expected two different languages, found {pair[0]} twice")
    return pair


SetName = Annotated[str, Field(pattern=r"^[\w.-]+$")]
"""Name of a test set, a part of the names of metrics and files."""
LanguagePair = Annotated[list[LanguageCode], Field(min_length=2, max_length=2), AfterValidator(_two_languages)]
XsimPairs = Literal["english", "all"] | Annotated[list[LanguagePair], Field(min_length=1)]
"""Pairs of source and target language: those with English, all of them, or those named."""


class RetrievalTest(Settings):
    """Queries, the documents to search, and judgements of which are relevant: a folder, or three tables."""

    folder: InputFile | None = None
    """Folder of BEIR, with `queries.jsonl`, `corpus.jsonl` and `qrels/test.tsv`; or of `questions.txt`, `entries.txt`
    and `gold.tsv`, as `faq` of `students.compare`."""
    split: Annotated[str, Field(pattern=r"^[\w.-]+$"), UsedWith("folder")] = "test"
    """Judgements of a folder of BEIR: the name of their file in `qrels`."""
    queries: Table | None = None
    """Columns `_id` or `id`, `text`, perhaps `language`; without their names the first two; the id of a plain line is
    its number."""
    corpus: Table | None = None
    """Documents in the same form; a column `title` precedes the text."""
    qrels: Table | None = None
    """Judgements in TREC's four columns, or query, document and grade, which is 1 where there is none; a document is
    relevant from grade 1."""
    modes: Annotated[list[SearchMode], Field(min_length=1, strict=False), EachOnce] = ["dense"]
    """Search by vectors, by words (`lexical`) and by both (`hybrid`); those by words are sets of their own in the
    metrics, `<name>-lexical` and `<name>-hybrid`."""
    dev: Table | None = None
    """Judgements of other queries, on which `hybrid` chooses the weight of its ranking by words; .5 when absent."""
    language: LanguageCode | None = None
    """Language of all queries; when absent that of each in the column `language`."""
    recall_at: Annotated[list[Positive], Field(min_length=1, strict=False)] = [10, 100]
    """Ranks to which `recall_at_<k>` counts."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.dev is not None and "hybrid" not in self.modes:
            raise ValueError("dev: expected hybrid among `modes`, whose weight it chooses; leave it out")
        tables = [table is not None for table in (self.queries, self.corpus, self.qrels)]
        if all(tables) if self.folder is None else not any(tables):
            return self
        raise ValueError("expected `folder`, or `queries`, `corpus` and `qrels`, and exactly one of the two forms")


class EvaluateSettings(LanguageChoice):
    """A student on held-out sentences: translation accuracy, distance to the teacher, STS, retrieval and mining."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    prompt: Prompt | None = None
    """Name of the model's prompt that precedes each sentence, or `{ text = "query: " }`, for a model that needs one;
    the model's default when absent."""
    teacher: Annotated[Teacher | None, UsedWith("parallel")] = None
    """Teacher for `mse/<language>`, an encoder or its vectors, `{ vectors = "vectors.parquet" }`; not measured when
    absent."""
    teacher_prompt: Prompt | None = None
    """Prompt of the teacher, as the student was taught; the teacher's default when absent."""
    recall_at: Annotated[Positive | None, UsedWith("teacher")] = None
    """Search the English sentences of `parallel`, as the teacher's vectors, with this many hits for a query: the
    student's vector of English and of each language. Gives `recall_at_<k>/<language>`."""
    parallel: UnlimitedSources = []
    """Held-out parallel sentences for `translation_accuracy/<from>-<into>`."""
    sts: StsSets = {}
    """STS sets by name, within a language or across two."""
    xsim: dict[SetName, Annotated[UnlimitedSources, Field(min_length=1)]] = {}
    """n-way test sets by name, each a list of sources with the same English: gives `xsim_error/<set>/<from>/<into>`,
    the percentage of sentences whose translation is not the nearest by ratio margin, as LASER's xsim."""
    xsim_pairs: Annotated[XsimPairs, UsedWith("xsim")] = "english"
    """Pairs of languages: English with each other one, all with all, or pairs such as [["de", "ko"]], from the first
    into the second."""
    mining: dict[SetName, MiningTest] = {}
    """Tests of bitext mining by name; gives `mining_f1/<name>/train` and `/test`, precision, recall and threshold."""
    retrieval: dict[SetName, RetrievalTest] = {}
    """Tests of search by name; gives `retrieval/<name>/ndcg_at_10`, `mrr_at_10`, `map` and `recall_at_<k>`, and by
    language of the query `retrieval/<name>/<language>/ndcg_at_10`."""
    lookup: Annotated[UnlimitedSources, UsedWith("parallel")] = []
    """Training corpora for the dictionary of word-for-word lookup, a baseline."""
    dimensions: list[Positive] = []
    """Score vectors cut to these dimensions too."""
    picture_sentences: Annotated[int, Field(ge=0), UsedWith("parallel")] = 4
    """Sentences, in every language, that the picture of similarities shows; 0 for none."""
    precision: Precision = "auto"
    max_rejects: MaxRejects = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"prompt": self.model, "teacher_prompt": self.teacher}, self)

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.parallel or self.sts or self.xsim or self.mining or self.retrieval):
            raise ValueError(
                "expected `parallel`, `sts`, `xsim`, `mining` or `retrieval`: without any there is nothing to score"
            )
        if not isinstance(self.xsim_pairs, str):
            sources = [source for of_set in self.xsim.values() for source in of_set]
            languages = {ENGLISH, *(language for source in sources for language in source.languages)}
            if missing := sorted({language for pair in self.xsim_pairs for language in pair} - languages):
                raise ValueError(f"xsim_pairs: expected languages of `xsim`, found {', '.join(missing)}, of no source")
        if not isinstance(self.teacher, ModelSource):
            refuse_idle(self, "teacher_prompt", because="there is no teacher that encodes")
        return self


class CompareSettings(LanguageChoice):
    """Two encoders on the same held-out translations and questions, with the differences of their metrics."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    base: EncoderSource
    """Encoder to compare it with, such as the one that a student was trained from."""
    prompt: Prompt | None = None
    """Prompt of the model, as in `students.evaluate`; its default when absent."""
    base_prompt: Prompt | None = None
    """Prompt of the base; its default when absent."""
    parallel: UnlimitedSources = []
    """Held-out parallel sentences for `translation_accuracy/<from>-<into>`."""
    faq: Annotated[InputFile | None, BeforeValidator(lambda value: value or None)] = None
    """Folder of `questions.txt` and `entries.txt`, a text a line, and `gold.tsv`: in a line the number of a question's
    line and that of an entry that answers it, from 1. None when absent or empty."""
    precision: Precision = "auto"
    max_rejects: MaxRejects = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"prompt": self.model, "base_prompt": self.base}, self)

    @model_validator(mode="after")
    def _something_to_compare(self) -> Self:
        if not (self.parallel or self.faq):
            raise ValueError("expected `parallel` or `faq`: without either there is nothing to compare")
        return self
