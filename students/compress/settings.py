"""The settings of smaller models and of graphs; free of torch."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import Table
from bertrelay.languages import EachOnce, LanguageCode, is_language
from bertrelay.model.settings import GraphPrecision, Opset
from bertrelay.settings import EncoderSource, MaxRejects, ModelSource, Positive, Precision, UnusedWith, UsedWith
from students.parallel.settings import (
    BY_LANGUAGE,
    ENGLISH,
    ONLY_CHOSEN,
    AlignedFiles,
    LanguageChoice,
    MaxMisplaced,
    TranslationColumns,
    TranslationFiles,
    UnlimitedSources,
    without_limit,
)
from students.settings import Prompt, prompt_problems
from teachers.settings import StsSets


class CorpusTable(Table):
    """The text of a table: all `columns` that it names, else `text`."""

    language: LanguageCode | None = None
    """Language of all its text, if it is one."""
    max_misplaced: Annotated[MaxMisplaced, UsedWith("language")] = 0.2
    """Fraction of texts that may seem to be in another language."""

    @property
    def languages(self) -> list[str]:
        """Returns the language of its text, if it names one."""
        return [self.language] if self.language else []


def _kind_of_corpus(value: Any) -> str:
    keys = set(value if isinstance(value, dict) else getattr(type(value), "model_fields", ()))
    of_pairs = (("languages", "translations"), ("others", "columns"), ("english", "files"), ("other", "files"))
    return next((kind for key, kind in of_pairs if key in keys), "text")


CorpusSource = Annotated[
    Annotated[CorpusTable, Tag("text")]
    | Annotated[AlignedFiles, AfterValidator(without_limit), Tag("files")]
    | Annotated[TranslationColumns, AfterValidator(without_limit), Tag("columns")]
    | Annotated[TranslationFiles, AfterValidator(without_limit), Tag("translations")],
    Discriminator(_kind_of_corpus),
]


COVERAGE = 0.999


class ShrinkSettings(LanguageChoice):
    """A smaller model, in `model/`, and size, speed and scores of both.

    Fewer layers, neurons or dimensions give other vectors. `students.distill` can start from such a model, and train it
    again.
    """

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    corpus: Annotated[list[CorpusSource], BY_LANGUAGE, ONLY_CHOSEN, Field(min_length=1)]
    """Text in the languages the model is for: tables, `{ path = FILE, language = "de" }`, and parallel sources."""
    trim_vocabulary: bool = True
    """Leave out the subwords that the corpus does not use. Changes no vector of the corpus."""
    languages: Annotated[list[LanguageCode], EachOnce, UsedWith("trim_vocabulary")] = []
    """Read only these languages of every source, and keep their subwords beyond the corpus, which has text of
    each: a tenth of it is held out. English too, where the corpus has parallel sources."""
    coverage: Annotated[float, Field(gt=0, le=1), UsedWith("languages")] = COVERAGE
    """Fraction of the tokens of held-out text, in each language, that must be cut as before."""
    layers: Positive | None = None
    """Layers to keep; one by one, those whose removal moves the corpus's vectors least are left out."""
    intermediate_size: Positive | None = None
    """Neurons to keep of each feed-forward layer, those that its output depends on most."""
    dimensions: Positive | None = None
    """Dimensions of a vector to keep, those along which the corpus's vectors are longest."""
    prompt: Prompt | None = None
    """Name of the model's prompt that precedes each sentence whose vectors choose and compare, or `{ text = "query: "
    }`; the model's default when absent. The smaller model has the prompts of the model."""
    sts: StsSets = {}
    """STS sets by name for `sts/…`, before and after; not used for training."""
    parallel: UnlimitedSources = []
    """Parallel sentences for `translation_accuracy/…`, before and after; not used for training."""
    precision: Precision = "auto"
    max_rejects: MaxRejects = 0.01

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"prompt": self.model}, self)

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if not (self.trim_vocabulary or self.layers or self.intermediate_size or self.dimensions):
            raise ValueError(
                "expected trim_vocabulary, layers, intermediate_size or dimensions: without any nothing changes"
            )
        return self

    @model_validator(mode="after")
    def _text_of_each_language(self) -> Self:
        codes = {language for source in self.corpus for language in source.languages}
        if self._has_parallel_text:
            codes.add(ENGLISH)
        if missing := [name for name in self.languages if not any(is_language(code, name) for code in codes)]:
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
        """Returns `languages`, with English before them if there is parallel text; none if `languages` is empty."""
        implied = [ENGLISH] if self.languages and self._has_parallel_text and ENGLISH not in self.languages else []
        return [*implied, *self.languages]


NO_GRAPH = UnusedWith("pair")


class ExportSettings(LanguageChoice):
    """A model as graphs for other engines, in `model/`, with the distance of their vectors to the model's, and speeds.

    Or, with `pair`, a student and its teacher as one model, without a graph.

    The model is an encoder, or a tagger, question answerer, scorer or cross-encoder; the vectors of these are the means
    of their tokens'. Cosines are of 150 sentences of many domains in 21 languages that come with the project, to the
    model in fp32.
    """

    model: ModelSource
    """Encoder, tagger, question answerer, scorer or cross-encoder: a model folder, `@stage/model`, `package:name/path`
    or a hub id."""
    pair: ModelSource | None = None
    """Teacher of the model, to which it is joined in one folder: `encode_query` is then the model's, and the vectors of
    documents are the teacher's."""
    formats: Annotated[list[Literal["onnx", "openvino"]], Field(min_length=1), NO_GRAPH] = ["onnx"]
    """Engines to export for: onnx is ONNX Runtime."""
    precision: Annotated[GraphPrecision, NO_GRAPH] = "fp32"
    """Number format of the graphs, or of the table of a static model; in int8 they are smaller, and vectors move a
    little."""
    opset: Annotated[Opset, NO_GRAPH] = 23
    """Opset of ONNX: 23 has an operator for attention, which is faster; 20 is for runtimes that do not read 23."""
    parent: Annotated[ModelSource | None, NO_GRAPH] = None
    """Model to measure beside this one, such as its teacher."""
    sts: StsSets = {}
    """STS sets by name for `sts/…`, of the model, its graphs and its parent or pair."""
    parallel: UnlimitedSources = []
    """Parallel sentences for `translation_accuracy/…`, of the model, its graphs and its parent or pair."""
    max_rejects: MaxRejects = 0.01
