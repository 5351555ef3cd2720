"""Tasks of the package mteb (Muennighoff et al. 2023): its own, whose data are on the hub, and tasks on local files.

The results are written by mteb, in its format and folders: `results/MODEL/REVISION/TASK.json`. A task that has one is
not run again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from langcodes import Language, standardize_tag
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertrelay.cache import Cache
from bertrelay.data import records
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Record
from bertrelay.device import resolve_precision
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import none_if_nan
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.encode import EncodingOptions, check_finite
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.model.settings import PoolingMode
from bertrelay.progress import log
from bertrelay.settings import ModelSource, settings_of
from bertrelay.stage import Metrics, StageContext
from teachers.data import BLANK, usable, values_of
from teachers.evaluation.encoders import with_pooling
from teachers.evaluation.settings import LocalTask, MtebSettings
from teachers.evaluation.sts import aligned_records, read_sts, second_table

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.results import TaskResult
    from mteb.types import EncodeKwargs, PromptType

PAIR = ("sentence1", "sentence2")
SPLIT = "test"
TYPES = {"sts": ("STS", "cosine_spearman"), "bitext": ("BitextMining", "f1")}
"""By the type of a local task, mteb's name of it and the score that its tasks of that type report."""
DECIMALS = 6  # of a score in mteb's files, so that it is the same whether it is read or computed
DIGITS = 40  # of a digest in place of a revision


class MtebEncoder:
    """Adapts a `SentenceEncoder` to mteb, for `mteb.evaluate(MtebEncoder(encoder), tasks)`.

    The prompt is the first of the model's that has the name of the task, of its type (`STS`, `BitextMining`) or of the
    role of the text (`query`, `document`), or both, as `STS-query`. Batches are planned by tokens, so mteb's
    `batch_size` is ignored.

    name, revision: the model in mteb's results; the default revision is the digest of the encoder.
    experiment: changes to the model, under which mteb stores its results apart.
    truncate_dim: see `encode`. options: see `EncodingOptions`.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        name: str = "bertrelay/encoder",
        revision: str | None = None,
        experiment: dict[str, str | int] | None = None,
        truncate_dim: int | None = None,
        **options: Unpack[EncodingOptions],
    ) -> None:
        self.encoder = encoder
        self.truncate_dim = truncate_dim
        self.options = options
        self.mteb_model_meta = _model_meta(encoder, name, revision or encoder_digest(encoder)[:DIGITS], experiment)

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: "TaskMetadata",
        hf_split: str = "",  # noqa: ARG002 (mteb's interface)
        hf_subset: str = "",  # noqa: ARG002
        prompt_type: "PromptType | None" = None,
        **_: "Unpack[EncodeKwargs]",
    ) -> NDArray[np.float32]:
        """Encodes the texts in batches of mteb, (n, dim). Raises WorkError for a vector that is not finite."""
        from mteb.models.abs_encoder import get_prompt_name

        texts = [text for batch in inputs for text in batch["text"]]
        name = get_prompt_name(self.encoder.prompts.texts, task_metadata, prompt_type)
        kinds = {"query": self.encoder.encode_query, "document": self.encoder.encode_document}
        encode: Callable[..., NDArray[np.float32]] = kinds[prompt_type.value] if prompt_type else self.encoder.encode
        vectors = encode(texts, prompt_name=name, truncate_dim=self.truncate_dim, **self.options)
        check_finite(self.encoder, vectors, lambda row: f"text {row + 1:,} of {task_metadata.name}")
        return vectors

    def similarity(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Computes the similarity (n, m) of all with all, by the encoder's function."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Computes the similarity (n,) of row with row, by the encoder's function."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)


def evaluate_tasks(
    model: str | Path,
    tasks: Sequence[str] = (),
    local: Sequence[LocalTask | dict[str, Any]] = (),
    languages: Sequence[str] = (),
    *,
    results: str | Path | None = None,
    pooling: Sequence[PoolingMode] | None = None,
    truncate_dim: int | None = None,
    precision: str = "fp32",
    max_rejects: float = 0.01,
) -> Metrics:
    """Computes `mteb/<task>/<subset>/<score>` of an encoder, for tasks and benchmarks of mteb and tasks on local files.

    results: the folder of mteb's results; $MTEB_CACHE or ~/.cache/mteb by default.
    Other arguments as in `teachers.evaluation.settings.MtebSettings`.
    Raises RequestError for unknown tasks, and for files that cannot be read.
    """
    options = settings_of(MtebSettings, {**locals(), "model": str(model)})
    nowhere = Path()  # reading tables writes nothing
    with Rejects(None, options.max_rejects) as rejects:
        read = read_tasks(options, StageContext(nowhere, Cache(nowhere)), rejects)
    return task_metrics(options, read, options.precision, None, None if results is None else Path(results))


def read_tasks(settings: MtebSettings, context: StageContext, rejects: Rejects) -> list["AbsTask"]:
    """Makes the tasks that `settings` name, in their languages; reads the data of those on local files."""
    named = [task for name in settings.tasks for task in _named(name)]
    grouped: dict[str, list[LocalTask]] = {}
    for table in settings.local:
        grouped.setdefault(table.task, []).append(table)
    local = [_local_task(name, tables, context, rejects) for name, tables in grouped.items()]
    return [_in_languages(task, settings.languages) for task in [*named, *local]]


def task_metrics(
    settings: MtebSettings, tasks: Sequence["AbsTask"], precision: str, cache: Cache | None, results: Path | None
) -> Metrics:
    """Computes the main score of every subset of `tasks`.

    cache: of models of the hub. results: the folder of mteb's results; its default when None.
    """
    mteb, model = _package(), settings.model
    encoder = with_pooling(open_encoder(model, cache), settings.pooling, settings.truncate_dim)
    resolved = resolve_precision(precision, encoder.device)
    changed: dict[str, str | int] = {"precision": resolved} if resolved != "fp32" else {}
    changed |= {"pooling": "-".join(settings.pooling)} if settings.pooling else {}
    changed |= {"truncate_dim": settings.truncate_dim} if settings.truncate_dim else {}
    wrapped = MtebEncoder(encoder, _name_of(model), model.revision, changed, settings.truncate_dim, precision=resolved)
    earlier = mteb.ResultCache(results)
    metrics: Metrics = {}
    for task in tasks:
        log(f"mteb: {task.metadata.name}: {len(task.hf_subsets)} subsets")
        before = earlier.load_task_result(task.metadata.name, wrapped.mteb_model_meta)
        is_stale = before is not None and before.dataset_revision != task.metadata.revision  # mteb would not notice
        options = {"overwrite_strategy": "always" if is_stale else "only-missing", "show_progress_bar": False}
        with _explain_missing_data(task.metadata.name):
            evaluated = mteb.evaluate(wrapped, task, cache=earlier, co2_tracker=False, **options)
        for result in evaluated.task_results:
            metrics |= dict(_main_scores(result, task))
    return metrics


def _package() -> Any:
    """Imports the package, which takes seconds. Raises RequestError where it is not installed."""
    try:
        import mteb
    except ImportError as error:
        raise RequestError(
            f"the protocol mteb needs the package mteb, which cannot be loaded ({error}): pip install 'bertrelay[mteb]'"
        ) from error
    return mteb


def _model_meta(
    encoder: SentenceEncoder, name: str, revision: str, experiment: dict[str, str | int] | None
) -> "ModelMeta":
    facts: dict[str, Any] = {
        "name": name,
        "revision": revision,
        "experiment_kwargs": experiment or None,
        "n_parameters": sum(weights.numel() for weights in encoder.parameters()) or None,  # of a graph unknown
        "max_tokens": encoder.max_tokens,
        "embed_dim": encoder.dim,
        "framework": ["Sentence Transformers", "PyTorch"],
    }
    if encoder.similarity_fn_name in ("cosine", "dot"):  # mteb knows these two
        facts["similarity_fn_name"] = encoder.similarity_fn_name
    empty: ModelMeta = _package().models.ModelMeta.create_empty()
    return type(empty)(**{**dict(empty), **facts})


def _name_of(model: ModelSource) -> str:
    """Returns a name `owner/model`, as mteb requires: the hub id, or the last two parts of a path."""
    name = model.hub_id or "/".join(Path(model).parts[-2:])
    return name if "/" in name else f"models/{name}"


def _named(name: str) -> list["AbsTask"]:
    """Returns the task or the tasks of the benchmark `name`. Raises RequestError for neither, and for images."""
    mteb = _package()
    try:
        tasks = [mteb.get_task(name)]
    except KeyError as error:
        try:
            tasks = list(mteb.get_benchmark(name).tasks)
        except KeyError:
            raise RequestError(f"tasks: mteb has no task or benchmark {name} ({error.args[0]})") from None
    if other := [task.metadata.name for task in tasks if task.metadata.modalities != ["text"]]:
        raise RequestError(f"tasks: expected tasks on text, found images or sounds in {', '.join(other)}")
    return tasks


def _in_languages(task: "AbsTask", languages: Sequence[str]) -> "AbsTask":
    """Restricts `task` to the subsets in `languages`; a language that names no script has any."""
    if not languages:
        return task
    selected = [_language_and_script(language) for language in languages]

    def is_selected(code: str) -> bool:
        language, script = _language_and_script(code)
        return (language, script) in selected or (language, None) in selected

    subsets = task.metadata.hf_subsets_to_langscripts
    chosen = [subset for subset, codes in subsets.items() if subset in task.hf_subsets and all(map(is_selected, codes))]
    if not chosen:
        raise RequestError(
            f"languages: {task.metadata.name} has nothing in {', '.join(languages)} only; it has {', '.join(subsets)}"
        )
    return task.filter_languages(None, hf_subsets=chosen)


def _language_and_script(tag: str) -> tuple[str | None, str | None]:
    """Parses a tag; `zh-Hans` and mteb's `cmn-Hans` are equal, because macrolanguages replace their languages."""
    language = Language.get(standardize_tag(tag, macro=True))
    return language.language, language.script


def _local_task(name: str, tables: Sequence[LocalTask], context: StageContext, rejects: Rejects) -> "AbsTask":
    """Makes a task of mteb whose subsets are `tables`; its revision is a digest of their rows."""
    mteb = _package()
    from datasets import Dataset
    from mteb.abstasks import AbsTaskBitextMining, AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    with suppress(KeyError):
        mteb.get_task(name)
        raise RequestError(f"local: {name} is the name of a task of mteb; name yours otherwise")
    kind, score = TYPES[tables[0].type]
    columns = {table.subset: _columns(table, context, rejects) for table in tables}
    metadata = TaskMetadata(
        name=name,
        description=f"Local files: {', '.join(table.name for table in tables)}",
        type=kind,
        category="t2t",
        eval_splits=[SPLIT],
        eval_langs={table.subset: list(map(_code, table.languages)) for table in tables},
        main_score=score,
        dataset={"path": "local files", "revision": fingerprint(columns)[:DIGITS]},
    )
    base = AbsTaskSTS if kind == "STS" else AbsTaskBitextMining
    task: AbsTask = type(name, (base,), {"metadata": metadata})()
    task.dataset = {subset: {SPLIT: Dataset.from_dict(rows)} for subset, rows in columns.items()}
    task.data_loaded = True
    return task


def _code(tag: str) -> str:
    """Returns the language in mteb's form: `deu-Latn` of `de`."""
    language = Language.get(tag)
    return f"{language.to_alpha3()}-{language.maximize().script}"


def _columns(table: LocalTask, context: StageContext, rejects: Rejects) -> dict[str, list[Any]]:
    """Reads a table into mteb's columns."""
    if table.type == "sts":
        pairs = read_sts(table, context, rejects)
        return {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores.tolist()}
    translations = list(usable(_translations(table, context.cache, rejects), _both, rejects))
    if not translations:
        raise RequestError(f"{table.name}: expected translations, found none that can be used: {rejects.summary([])}")
    return dict(zip(PAIR, map(list, zip(*translations, strict=True)), strict=True))


def _translations(table: LocalTask, cache: Cache, rejects: Rejects) -> Iterator[Record]:
    """Yields records of two sentences, from one table or from two aligned ones."""
    if table.second is None:
        yield from records.read(table, PAIR, cache, rejects)
    else:
        for first, second in aligned_records(table, second_table(table), [0], cache, rejects):
            yield first._replace(values=(*first.values, *second.values))


def _both(record: Record) -> tuple[str, str]:
    first, second = values_of(record, "bitext", PAIR)
    if not all(isinstance(text, str) and text.strip() for text in (first, second)):
        raise ValueError(BLANK)
    return first, second


@contextmanager
def _explain_missing_data(task: str) -> Iterator[None]:
    """Raises RequestError with the name of the task where the hub cannot be reached or lacks its data."""
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            raise
        raise RequestError(
            f"mteb: the data of {task} cannot be read ({type(error).__name__}: {error}). Connect to the network and "
            "check HF_HUB_OFFLINE, or give files of your own under `local`"
        ) from error


def _main_scores(result: "TaskResult", task: "AbsTask") -> Iterator[tuple[str, float | None]]:
    """Yields `mteb/<task>/<subset>/<score>`; of a task with several splits `mteb/<task>/<split>/<subset>/<score>`."""
    for split, scores in result.scores.items():
        prefix = f"mteb/{result.task_name}/{split}" if len(result.scores) > 1 else f"mteb/{result.task_name}"
        for subset in scores:
            score = none_if_nan(round(float(subset["main_score"]), DECIMALS))
            yield f"{prefix}/{subset['hf_subset']}/{task.metadata.main_score}", score
