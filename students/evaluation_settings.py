"""How a student is evaluated and made smaller: settings alone, with nothing heavy to load."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import StsTable, Table
from bertrelay.languages import EachOnce, LanguageCode, is_language
from bertrelay.settings import WHEN_SET, EncoderSource, ModelSource, Positive, Precision, Settings, refuse_idle
from students.search_settings import MiningTest
from students.settings import (
    ENGLISH,
    AlignedFiles,
    MaxMisplaced,
    Prompt,
    Teacher,
    TranslationColumns,
    TranslationFiles,
    UnlimitedSource,
    prompt_problems,
    without_limit,
)


def _two_languages(pair: list[str]) -> list[str]:
    if pair[0] == pair[1]:
        raise ValueError(f"expected two different languages, found {pair[0]} twice")
    return pair


SetName = Annotated[str, Field(pattern=r"^[\w.-]+$")]
"""Of a test set: a part of metrics' and of files' names."""
LanguagePair = Annotated[list[LanguageCode], Field(min_length=2, max_length=2), AfterValidator(_two_languages)]
XsimPairs = Literal["english", "all"] | Annotated[list[LanguagePair], Field(min_length=1)]
"""Pairs of source and target language: those with English, all of them, or those named."""


class EvaluateSettings(Settings):
    """A student on held-out sentences: translation accuracy, distance to the teacher, STS within and across languages.

    prompt: which of the model's prompts precedes each sentence, or `{ text = "query: " }`, for a model that needs one;
        the model's default when absent.
    teacher: gives `mse/<language>`; left out, there is none.
    teacher_prompt: as the student was taught; the teacher's default when absent.
    recall_at: search the English sentences of `parallel`, as the teacher's vectors, with so many hits for a query: the
        student's vector of English and of each language. Gives `recall_at_<k>/<language>`.
    xsim: n-way test sets by name, each a list of sources with the same English: gives `xsim_error/<set>/<from>/<into>`,
        the share in % of sentences whose translation is not the nearest by ratio margin, as LASER's xsim.
    xsim_pairs: which languages: English with each other one, all with all, or pairs such as [["de", "ko"]], from the
        first into the second.
    mining: tests of bitext mining by name; gives `mining_f1/<name>/train` and `/test`, precision, recall and threshold.
    lookup: training corpora for the dictionary of word-for-word lookup, a baseline.
    dimensions: score vectors cut to these dimensions too.
    picture_sentences: how many sentences, in every language, the picture of similarities shows; 0 for none.
    """

    model: EncoderSource
    prompt: Annotated[Prompt | None, WHEN_SET] = None
    teacher: Teacher | None = None
    teacher_prompt: Annotated[Prompt | None, WHEN_SET] = None
    recall_at: Annotated[Positive | None, WHEN_SET] = None
    parallel: list[UnlimitedSource] = []
    sts: dict[str, StsTable] = {}
    xsim: Annotated[dict[SetName, Annotated[list[UnlimitedSource], Field(min_length=1)]], WHEN_SET] = {}
    xsim_pairs: Annotated[XsimPairs, WHEN_SET] = "english"
    mining: Annotated[dict[SetName, MiningTest], WHEN_SET] = {}
    lookup: list[UnlimitedSource] = []
    dimensions: Annotated[list[Positive], WHEN_SET] = []
    picture_sentences: Annotated[int, Field(ge=0)] = 4
    precision: Precision = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"prompt": self.model, "teacher_prompt": self.teacher}, self)

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.parallel or self.sts or self.xsim or self.mining):
            raise ValueError("expected `parallel`, `sts`, `xsim` or `mining`: without any there is nothing to score")
        if not self.xsim:
            refuse_idle(self, "xsim_pairs", because="there are no sets in `xsim`")
        elif not isinstance(self.xsim_pairs, str):
            known = {ENGLISH, *(of for sources in self.xsim.values() for source in sources for of in source.languages)}
            if missing := sorted({language for pair in self.xsim_pairs for language in pair} - known):
                raise ValueError(f"xsim_pairs: expected languages of `xsim`, found {', '.join(missing)}, of no source")
        if not isinstance(self.teacher, ModelSource):
            refuse_idle(self, "teacher_prompt", because="there is no teacher that encodes")
        if not self.parallel:
            refuse_idle(self, "teacher", "lookup", "picture_sentences", because="it needs the sentences of `parallel`")
        if self.teacher is None:
            refuse_idle(self, "recall_at", because="there is no `teacher`, whose vectors are searched")
        return self


class CorpusTable(Table):
    """Text of a corpus: of a table all the columns that are named, else `text`.

    language: of all of it, where it is known.
    max_misplaced: the share of texts that may seem to be in another language.
    """

    language: LanguageCode | None = None
    max_misplaced: MaxMisplaced = 0.2

    @model_validator(mode="after")
    def _language_counts(self) -> Self:
        if self.language is None:
            refuse_idle(self, "max_misplaced", because="there is no `language` to compare texts with")
        return self

    @property
    def languages(self) -> list[str]:
        """The language of its text, if it is known."""
        return [self.language] if self.language else []


CorpusSource = Annotated[
    Annotated[CorpusTable, Tag("text")]
    | Annotated[AlignedFiles, AfterValidator(without_limit), Tag("files")]
    | Annotated[TranslationColumns, AfterValidator(without_limit), Tag("columns")]
    | Annotated[TranslationFiles, AfterValidator(without_limit), Tag("translations")],
    Discriminator(lambda value: _kind_of_corpus(value)),
]


def _kind_of_corpus(value: Any) -> str:
    keys = set(value if isinstance(value, dict) else getattr(type(value), "model_fields", ()))
    of_pairs = (("languages", "translations"), ("others", "columns"), ("english", "files"), ("other", "files"))
    return next((kind for key, kind in of_pairs if key in keys), "text")


COVERAGE = 0.999


class ShrinkSettings(Settings):
    """A smaller model, in `model/`, and size, speed and scores of both.

    corpus: text in the languages the model is for: tables, `{ path = FILE, language = "de" }`, and parallel sources.
    trim_vocabulary: leave out the pieces that the corpus does not use. Changes no vector of the corpus.
    languages: keep pieces of these languages beyond the corpus, which has text of each: a tenth of it is held out.
        Of English too, where the corpus has parallel sources.
    coverage: the share of the tokens of held-out text, in each language, that must be cut as before.
    layers: keep so many layers; each time the one whose removal moves the corpus's vectors least is left out.
    intermediate_size: keep so many neurons of each feed-forward layer, those that its output depends on most.
    dimensions: so many dimensions of a vector, along which those of the corpus are longest.
    prompt: which of the model's prompts precedes each sentence where vectors are chosen by and compared, or
        `{ text = "query: " }`; the model's default when absent. The smaller model has the prompts of the model.
    sts, parallel: test sets for `sts/…` and `translation_accuracy/…`, before and after; none of them is trained on.
    max_rejects: the share of records that may be unusable.

    Fewer layers, neurons or dimensions give other vectors. `students.distill` can start from such a model, and train it
    again.
    """

    model: EncoderSource
    corpus: Annotated[list[CorpusSource], Field(min_length=1)]
    trim_vocabulary: bool = True
    languages: Annotated[list[LanguageCode], EachOnce] = []
    coverage: Annotated[float, Field(gt=0, le=1)] = COVERAGE
    layers: Positive | None = None
    intermediate_size: Annotated[Positive | None, WHEN_SET] = None
    dimensions: Positive | None = None
    prompt: Annotated[Prompt | None, WHEN_SET] = None
    sts: dict[str, StsTable] = {}
    parallel: list[UnlimitedSource] = []
    precision: Precision = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"prompt": self.model}, self)

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if not (self.trim_vocabulary or self.layers or self.intermediate_size or self.dimensions):
            raise ValueError(
                "expected trim_vocabulary, layers, intermediate_size or dimensions: without any the model stays as it "
                "is"
            )
        if not self.trim_vocabulary:
            refuse_idle(self, "languages", because="trim_vocabulary = false")
        if not self.languages:
            refuse_idle(self, "coverage", because="no languages are given")
        return self

    @model_validator(mode="after")
    def _text_of_each_language(self) -> Self:
        known = {language for source in self.corpus for language in source.languages}
        if self._has_parallel_text:
            known.add(ENGLISH)
        if missing := [asked for asked in self.languages if not any(is_language(code, asked) for code in known)]:
            raise ValueError(
                f"languages: expected text of each in the corpus, found none in {', '.join(missing)}. Name the "
                'language of a table, { path = FILE, language = "de" }, or give parallel sources'
            )
        return self

    @property
    def _has_parallel_text(self) -> bool:
        return any(not isinstance(source, CorpusTable) for source in self.corpus)

    @property
    def kept_languages(self) -> list[str]:
        """`languages`, and English before them where there is parallel text; none where `languages` is empty."""
        implied = [ENGLISH] if self.languages and self._has_parallel_text and ENGLISH not in self.languages else []
        return [*implied, *self.languages]


GraphPrecision = Literal["fp32", "int8"]
Opset = Literal[20, 23]


class ExportSettings(Settings):
    """A model as graphs for other engines, in `model/`; how near their vectors are to the model's, and how fast.

    formats: the engines to export for: onnx is ONNX Runtime.
    precision: of the graphs; in int8 they are smaller, and vectors move a little.
    lowest_cosine: of int8 graphs: as many products stay in fp32 as it takes that no cosine is lower.
    opset: of ONNX: 23 has an operator for attention, which is faster; 20 is for runtimes that do not read 23.
    parent: a model that this one is to be as good as, such as its teacher; it is measured beside it.
    sts, parallel: test sets for `sts/…` and `translation_accuracy/…`, of the model, its graphs and its parent.
    max_rejects: the share of records that may be unusable.

    The model is an encoder, or a tagger, question answerer, scorer or cross-encoder; the vectors of these are the means
    of their tokens'. Cosines are of 150 sentences of many domains in 21 languages that come with the project, to the
    model in fp32.
    """

    model: ModelSource
    formats: Annotated[list[Literal["onnx", "openvino"]], Field(min_length=1)] = ["onnx"]
    precision: GraphPrecision = "fp32"
    lowest_cosine: Annotated[float | None, Field(gt=0, lt=1), WHEN_SET] = None
    opset: Opset = 23
    parent: Annotated[ModelSource | None, WHEN_SET] = None
    sts: dict[str, StsTable] = {}
    parallel: list[UnlimitedSource] = []
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _only_int8_moves(self) -> Self:
        if self.precision != "int8":
            refuse_idle(self, "lowest_cosine", because="fp32 graphs differ by rounding alone")
        return self
