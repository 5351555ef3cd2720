"""The models of a server: each is opened as what its folder holds, and found by name and kind."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.folder import ModelFolder
from bertrelay.model.kinds import ANSWERER, ENCODER, EXTRACTOR, LINKER, NETWORK, PREDICTOR, SCORER, TAGGER
from domain.biomedical.linking.predict import EntityLinker
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.biomedical.relations.predict import RelationExtractor
from domain.clinical.predict import OutcomeScorer
from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.engine import Engine
from pipelines.serve.heads import (
    ServedAnswerer,
    ServedExtractor,
    ServedLinker,
    ServedPredictor,
    ServedScorer,
    ServedTagger,
)
from pipelines.serve.requests import Refusal
from pipelines.serve.searching import ServedIndex
from pipelines.serve.settings import ServeSettings
from students.searching.index import find_index, open_index
from students.searching.index_folder import MANIFEST, read_manifest
from students.searching.settings import IndexOptions, index_beside
from teachers.pairs.rerank import load_scorer

Computing = (
    ServedEncoder | ServedScorer | ServedTagger | ServedLinker | ServedExtractor | ServedAnswerer | ServedPredictor
)
Served = Computing | ServedIndex
AnyServed = TypeVar("AnyServed", bound=Served)
Source = str | Path | Table
"""A model folder or hub id, the folder of an index, or a table of which an index is built."""

PLAIN_NAMES = re.compile(r"model|index|latest|[0-9a-f]{12}")
"""Names of folders that say nothing about the model in them: those of a run."""


class Models:
    """The models of a server, in the order in which they were named."""

    def __init__(self, served: Sequence[Served], cards: Mapping[str, str] = {}) -> None:
        self._cards = dict(cards)
        self.by_name = {model.name: model for model in served}

    def __iter__(self) -> Iterator[Served]:
        return iter(self.by_name.values())

    def of_kind(self, kind: type[AnyServed]) -> list[AnyServed]:
        """The models of a kind."""
        return [model for model in self if isinstance(model, kind)]

    def find(self, kind: type[AnyServed], name: str | None = None) -> AnyServed:
        """The model of this name, or the first of the kind. Raises Refusal where there is none."""
        of_kind = self.of_kind(kind)
        if not of_kind:
            raise Refusal(f"this server has no {kind.kind}", "not_found", code="model_not_found")
        if name is None:
            return of_kind[0]
        model = next((model for model in of_kind if model.name == name), None)
        if model is None:
            names = ", ".join(model.name for model in of_kind)
            raise Refusal(
                f"model: expected {names}; found another, or none that is {kind.kind}",
                "not_found",
                param="model",
                code="model_not_found",
            )
        return model

    def encoder(self, name: str | None) -> tuple[ServedEncoder, str | None]:
        """The encoder of a name, and the name of the prompt in `NAME:PROMPT`. Raises Refusal as `find` does."""
        if name is not None and name not in self.by_name:
            model, colon, prompt = name.rpartition(":")
            if colon and model in self.by_name:
                encoder = self.find(ServedEncoder, model)
                if prompt in encoder.encoder.prompts.texts:
                    return encoder, prompt
        return self.find(ServedEncoder, name), None

    @property
    def about(self) -> list[dict[str, Any]]:
        """Facts about each model: name, kind, what its kind describes, and the model card in its folder."""
        facts = [{"name": model.name, "kind": model.kind, **model.description} for model in self]
        return [{**one, "card": self._cards.get(one["name"])} for one in facts]

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines by the names of their models, a pair's of queries by `NAME:query`; an index has its encoder's."""
        return {model.name: model.engine for model in self.with_engines}

    @property
    def with_engines(self) -> "list[Computing]":
        """The models that have an engine, and the encoders of queries of pairs."""
        queries = [encoder.queries for encoder in self.of_kind(ServedEncoder) if encoder.queries]
        return [model for model in (*self, *queries) if not isinstance(model, ServedIndex)]

    def close(self) -> None:
        """Computes what waits, and ends all engines."""
        for engine in self.engines.values():
            engine.close()


def named_sources(sources: Iterable[tuple[str, Source]]) -> dict[str, Source]:
    """The sources by name; one without a name has that of its folder or table.

    Example: `[("", "runs/x/student/latest/model")]` → `{"student": "runs/x/student/latest/model"}`.
    Raises RequestError for two of one name.
    """
    named = dict[str, Source]()
    for written, source in sources:
        name = written or _name_of(source)
        if name in named:
            raise RequestError(f"models: expected different names, found {name} twice; name one: NAME=FOLDER")
        named[name] = source
    return named


def _name_of(source: Source) -> str:
    if isinstance(source, Table):
        return Path(source.name).name.split(".")[0]
    path = Path(source)
    if not path.is_dir():  # a hub id, or package:name/path
        return str(source)
    parts = path.absolute().parts[1:]
    return next((part for part in reversed(parts) if not PLAIN_NAMES.fullmatch(part)), "model")


def is_index(source: Source) -> bool:
    """True for the folder of an index."""
    return not isinstance(source, Table) and Path(source, MANIFEST).is_file()


def holds_patients(sources: Mapping[str, Source]) -> bool:
    """True where a source is a predictor of patients' outcomes, whose requests are sensitive."""
    folders = [source for source in sources.values() if not isinstance(source, Table) and not is_index(source)]
    return any(ModelFolder.find(source).kind is PREDICTOR for source in folders)


def open_models(sources: Mapping[str, Source], settings: ServeSettings, *, show: Sequence[int | str] = ()) -> Models:
    """Opens models, indexes and tables by name, and computes one example with each.

    show: columns of tables and indexes that hits show; an index shows all that it has where absent.
    Raises RequestError for a source that cannot be opened, and for an index without the encoder of its vectors.
    """
    indexes = {name: source for name, source in sources.items() if isinstance(source, Table) or is_index(source)}
    served: dict[str, Served] = {
        name: _open_model(name, cast(str | Path, source), settings)
        for name, source in sources.items()
        if name not in indexes
    }
    encoders = [model for model in served.values() if isinstance(model, ServedEncoder)]
    for name, source in indexes.items():
        served[name] = _open_index(name, source, encoders, settings, show)
    cards = {name: card for name in served if name not in indexes and (card := _card(cast(str, sources[name])))}
    models = Models([served[name] for name in sources], cards)
    for model in models.with_engines:
        model.engine.submit([model.example], [1]).result()
    return models


def _card(source: str | Path) -> str | None:
    path = ModelFolder.find(source).path / "README.md"
    return path.read_text("utf-8", errors="replace") if path.is_file() else None


def _open_model(name: str, source: str | Path, settings: ServeSettings) -> Served:
    folder = ModelFolder.find(source)
    kind = folder.kind
    if kind in (ENCODER, NETWORK):
        return ServedEncoder(name, SentenceEncoder.load(folder), settings)
    if kind is SCORER:
        return ServedScorer(name, load_scorer(folder.path), settings)
    if kind is TAGGER:
        return ServedTagger(name, EntityTagger.load(folder.path), settings)
    if kind is LINKER:
        return ServedLinker(name, EntityLinker.load(folder.path), settings)
    if kind is EXTRACTOR:
        return ServedExtractor(name, RelationExtractor.load(folder.path), settings)
    if kind is ANSWERER:
        return ServedAnswerer(name, QuestionAnswerer.load(folder.path), settings)
    if kind is PREDICTOR:
        return ServedPredictor(name, OutcomeScorer.load(folder.path), settings)
    held = "no model" if kind is None else kind.words
    raise RequestError(
        f"{source}: expected an encoder, a cross-encoder, a tagger, a linker, a model of relations, an answerer, a "
        f"predictor or an index; found {held}"
    )


def _open_index(
    name: str, source: Source, encoders: Sequence[ServedEncoder], settings: ServeSettings, show: Sequence[int | str]
) -> ServedIndex:
    if not encoders:
        raise RequestError(f"{name}: expected an encoder beside it, whose vectors it has; name its folder too")
    if isinstance(source, Table):
        first = encoders[0]
        options = IndexOptions(
            kind=settings.kind, show=list(show), precision=settings.precision, batch_tokens=settings.batch_tokens
        )
        index = find_index(first.encoder, source, index_beside(source.name), options)
        return ServedIndex(name, index, first)
    manifest = read_manifest(Path(source))
    columns = list(show) or ([] if manifest is None else manifest.columns)
    digest = "" if manifest is None else manifest.origin.model_digest
    encoder = next((one for one in encoders if digest in (one.digest, *one.encoder.spaces)), encoders[0])
    return ServedIndex(name, open_index(encoder.encoder, source, kind=settings.kind, show=columns), encoder)
