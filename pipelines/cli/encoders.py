"""`bertrelay encode`, `evaluate`, `shrink` and `export`: what is done with any sentence encoder."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from pydantic import Field

from bertrelay.compute.engine import Engine
from bertrelay.encode_stage import EncodeSettings
from bertrelay.errors import RequestError
from bertrelay.files import check_output
from bertrelay.languages import CODE
from bertrelay.settings import ModelSource, Positive, Settings
from bertrelay.stage import Metrics, StageContext, check_new, load, run_alone, write_model
from pipelines.cli.options import (
    DATASET_HELP,
    FILE_HELP,
    ColumnOptions,
    Fields,
    JsonOption,
    ModelArgument,
    TableOptions,
    WorkOptions,
    argument,
    check_idle,
    check_request,
    command,
    distributed,
    print_document,
    print_result,
    validated,
    write_out,
)
from pipelines.cli.stdin import input_file
from pipelines.recipe.text import read_tables, read_tables_file
from pipelines.recipe.validation import Problems
from pipelines.registry import PROTOCOLS
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.errors import stopping_at_once
from students.compress.settings import ExportSettings, ShrinkSettings
from students.evaluate.settings import EvaluateSettings

PANEL = "Sentences"
TF_IDF = "tf-idf"
SHRINK_METRICS, EXPORT_METRICS = "shrink.json", "export.json"
METRIC_WIDTH = 12
ProtocolSettings: type[Settings] = load(PROTOCOLS[0])

encoders = typer.Typer()


class EncodeOptions(ColumnOptions, WorkOptions):
    """Options of reading sentences and writing vectors."""

    keep: list[str] = Field(default=[])
    """Columns of a dataset that the output has too."""
    skip_invalid: bool = False
    """Drop invalid records of a file and list them in OUTPUT.rejects.jsonl."""


@command(encoders, rich_help_panel=PANEL)
def encode(
    model: ModelArgument,
    source: Annotated[str, argument("INPUT", FILE_HELP)],
    output: Annotated[str, argument("OUTPUT", f"A .npy or .parquet file; {DATASET_HELP}")],
    settings: Annotated[Fields, EncodeSettings, "vectors", "prompt", "precision", "batch_tokens"],
    options: EncodeOptions,
    cluster: Engine,
) -> None:
    """Write the vector of every sentence in INPUT to OUTPUT, row i for sentence i.

    A file of any size fits in the same memory. Stop it at any time: the same command resumes.

    For example:

      bertrelay encode MODEL english.txt vectors.npy

      bertrelay encode MODEL table.tsv vectors.parquet --column text --processes 2

      zcat table.csv.gz | bertrelay encode MODEL - vectors.npy --format csv

      bertrelay encode MODEL sentences.parquet vectors.parquet --engine ray://head:10001 --gpus-per-worker 1

      bertrelay encode MODEL s3://bucket/notes s3://bucket/vectors --column note --keep id --engine ray
    """
    from bertrelay.data.parquet import is_dataset

    check_request(model, options.processes)
    settings |= {"prompt_name": settings.pop("prompt"), "engine": cluster}
    if is_dataset(output):
        options_of_files = {"--skip-invalid": options.skip_invalid, "--format": options.format}
        options_of_files |= {"--no-header": not options.header, "--quoted": options.quoted}
        check_idle(options_of_files, "input and output are Parquet datasets")
        with distributed(options.processes) as process_group:
            from bertrelay.encode_files import encode_dataset

            settings |= {"column": options.column or "text", "keep": options.keep, "overwrite": options.overwrite}
            encoded = encode_dataset(model, source, output, process_group=process_group, **settings)
    else:
        encoded = _encode_file(model, source, Path(output), settings, options)
    print_result("encode", encoded, output, options.as_json)


def _encode_file(model: str, source: str, output: Path, settings: Fields, options: EncodeOptions) -> Any:
    from bertrelay.data.records import Rejects
    from bertrelay.data.sentences import check_first
    from bertrelay.data.vectors import SUFFIXES

    check_idle({"--keep": options.keep}, "the output is a file, and no dataset (FOLDER/ or an address)")
    check_output(output, SUFFIXES, source, overwrite=options.overwrite)
    with input_file(source, output) as name:
        table = options.table(name, options.column)
        check_first(table, Rejects(None, limit=1.0) if options.skip_invalid else None)
        listed = output.with_name(f"{output.name}.rejects.jsonl")
        rejects = Rejects(listed, limit=1.0, keep_empty=False) if options.skip_invalid else None
        with distributed(options.processes) as process_group:
            from bertrelay.encode_files import encode_file

            settings |= {"rejects": rejects, "process_group": process_group, "overwrite": options.overwrite}
            return encode_file(model, table, output, **settings)


class EvaluateOptions(JsonOption):
    """Options of what is evaluated, and of writing results."""

    protocols: list[str] = Field(default=[])
    """`sts` (STS12 to 16, STSb, SICK-R), `senteval` (seven classifications), `facets` (Argument Facet Similarity),
    `sections` (triplets of Wikipedia sections), `mteb` (tasks of the package of that name), `retrieval` (search in your
    own documents). May be repeated."""
    queries: str | None = None
    """With --protocol retrieval: queries, lines or a table with the columns id and text, perhaps language."""
    corpus: str | None = None
    """With --protocol retrieval: documents in the same form; or a folder of BEIR, with queries and judgements."""
    qrels: str | None = None
    """With --protocol retrieval: judgements, TREC's qrels or a table of query, document and grade."""
    parallel: list[str] = Field(default=[])
    """Measure the translation accuracy of a student on this set: de=ENGLISH,GERMAN names two aligned files, de=TABLE a
    table with the columns en and de. May be repeated."""
    teacher: str | None = None
    """With --parallel: measure how near the student's vectors are to those of this encoder, a model folder or hub id,
    or of a Parquet file with the columns text and vector."""
    recall_at: Positive | None = None
    """With --teacher: search the English sentences, as the teacher's vectors, with this many hits for a query."""
    results: Path | None = None
    """Folder for mteb's results; its own, $MTEB_CACHE or ~/.cache/mteb, when absent."""


EVALUATE_OPTIONS = {"protocols": "--protocol", "sets": "--only", "tasks": "--tasks TASK", "languages": "--language"}
STUDENT_OPTIONS = {"parallel": "--parallel LANGUAGE=FILES", "teacher": "--teacher MODEL"}
SEARCH_OPTIONS = {"queries": "--queries FILE", "corpus": "--corpus FILE", "qrels": "--qrels FILE"}
RETRIEVAL = "retrieval"
"""A protocol of `students.evaluate`; the others are those of `teachers.protocols`."""


@command(
    encoders,
    names={**EVALUATE_OPTIONS, **STUDENT_OPTIONS, **SEARCH_OPTIONS, "results": "--results DIR"},
    rich_help_panel=PANEL,
)
def evaluate(
    model: Annotated[
        str,
        argument("MODEL", "A model folder, a hub id or package:name/path; a text file of word vectors; or tf-idf."),
    ],
    options: Annotated[
        Fields,
        ProtocolSettings,
        *("sets", "tasks", "languages", "pooling", "truncate_dim", "folds", "seed", "precision"),
    ],
    shown: EvaluateOptions,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Folder with the official files, at any depth.")
    ] = None,
) -> None:
    """Evaluate MODEL by the protocols of the SBERT paper (similarity, classification, arguments, sections) or mteb's.

    With --parallel it is a student: translation accuracy and, with --teacher, nearness to the teacher's vectors.

    With --protocol retrieval the queries of --queries search the documents of --corpus, judged by --qrels.

    Prints tables with 95 % intervals and the published metrics; --json has every correlation as well.

    A TASK is one of mteb's, a benchmark, or a TOML file of tasks on local files: `local = […]` as in a recipe.

    For example:

      bertrelay evaluate MODEL --protocol sts --data sbert-paper

      bertrelay evaluate glove.840B.300d.txt.gz --protocol sts --protocol senteval --data SentEval/data/downstream

      bertrelay evaluate MODEL --protocol mteb --tasks STS17 --tasks my-tasks.toml --language en --language de

      bertrelay samples my-samples && bertrelay evaluate tf-idf --protocol sts --data my-samples/sbert-paper

      bertrelay evaluate STUDENT --teacher TEACHER --parallel de=test.en,test.de --recall-at 10

      bertrelay evaluate MODEL --protocol retrieval --queries queries.tsv --corpus documents.jsonl --qrels test.qrels
    """
    from pipelines.report.tables import score_lines

    metrics: dict[str, Metrics] = {}
    is_search = RETRIEVAL in shown.protocols
    if shown.parallel or is_search:
        metrics["students.evaluate"] = _student_metrics(model, shown, options["precision"])
    if not shown.parallel:
        check_idle({"--teacher": shown.teacher, "--recall-at": shown.recall_at}, "there is no --parallel")
    if not is_search:
        files = {"--queries": shown.queries, "--corpus": shown.corpus, "--qrels": shown.qrels}
        check_idle(files, "there is no --protocol retrieval")
    if set(shown.protocols) - {RETRIEVAL} or not metrics:
        metrics["teachers.protocols"] = _protocol_metrics(model, shown, options, data)
    else:
        names = {f"--{name}": options[name] for name in ("tasks", "pooling", "truncate_dim")}
        names |= {"--language": options["languages"], "--only": options["sets"]}
        check_idle({**names, "--data": data, "--results": shown.results}, "there is no --protocol that has them")
    if shown.as_json:
        together = {name: value for of_kind in metrics.values() for name, value in of_kind.items()}
        print_document("evaluate", {"model": model, "metrics": together})
        return
    for kind, of_kind in metrics.items():
        for _, verdict in verdicts([StageResult(model, kind, of_kind)]):
            write_out(f"{verdict.level:6}  {verdict.text}", coloured=True)
        write_out("\n".join(score_lines({model: of_kind}, {model: kind}, intervals=True)))


def _student_metrics(model: str, shown: EvaluateOptions, precision: str) -> Metrics:
    """The metrics of the stage `students.evaluate`, which writes nothing that stays."""
    from students.evaluate.stage import run

    teacher = {"vectors": shown.teacher} if (shown.teacher or "").endswith(".parquet") else shown.teacher
    settings = {
        "model": model,
        "teacher": teacher,
        "recall_at": shown.recall_at,
        "parallel": list(map(_translations, shown.parallel)),
        "precision": precision,
        "picture_sentences": 0 if shown.parallel else None,
        "retrieval": _retrieval_test(shown) if RETRIEVAL in shown.protocols else None,
    }
    settled = validated(EvaluateSettings, {name: value for name, value in settings.items() if value is not None})
    names_hub = isinstance(settled.teacher, ModelSource) and settled.teacher.folder is None
    check_request(model, names_hub=names_hub)
    with TemporaryDirectory() as folder:
        return run_alone(run, settled, Path(folder))


def _retrieval_test(shown: EvaluateOptions) -> dict[str, Any]:
    """The test of --queries, --corpus and --qrels, or of a folder in --corpus, under the name of the corpus."""
    if shown.corpus is None:
        raise RequestError("--protocol retrieval: expected --corpus, a file or a folder of BEIR, found none")
    name = re.sub(r"[^\w.-]+", "-", Path(shown.corpus).name.split(".")[0]) or "corpus"
    if Path(shown.corpus).is_dir():
        check_idle({"--queries": shown.queries, "--qrels": shown.qrels}, "--corpus is a folder that has them")
        return {name: {"folder": shown.corpus}}
    files = {"queries": shown.queries, "corpus": shown.corpus, "qrels": shown.qrels}
    if missing := [f"--{key}" for key, file in files.items() if file is None]:
        raise RequestError(f"--protocol retrieval: expected {' and '.join(missing)} beside --corpus FILE, found none")
    return {name: {key: {"path": file} for key, file in files.items()}}


def _protocol_metrics(model: str, shown: EvaluateOptions, options: Fields, data: Path | None) -> Metrics:
    files = [task for task in options["tasks"] or [] if task.endswith(".toml")]
    options |= {"protocols": [name for name in dict.fromkeys(shown.protocols) if name != RETRIEVAL]}
    options |= {"tasks": [task for task in options["tasks"] or [] if task not in files]}
    options |= {"local": [table for file in files for table in _local_tasks(file)], "data": data and str(data)}
    fields = ProtocolSettings.model_fields
    changed = {name: value for name, value in options.items() if value and value != fields[name].default}
    whole = {**_source(model, names_hub=bool(options["tasks"])), **changed}
    settings = validated(ProtocolSettings, whole, EVALUATE_OPTIONS)
    metrics: Metrics = load(PROTOCOLS[1])(settings, shown.results)
    return metrics


def _local_tasks(file: str) -> list[Any]:
    """The tables under `local` in a TOML file, whose paths are relative to it."""
    problems = Problems(file)
    tables = read_tables(read_tables_file(file, "a TOML file of tasks"), (), problems)
    problems.raise_if_any()
    local = tables.pop("local", None)
    if tables or not isinstance(local, list):
        raise RequestError(
            f"{file}: expected `local`, a list of tasks, and nothing else; found {', '.join(tables) or 'none'}"
        )
    return local


def _source(model: str, names_hub: bool) -> dict[str, Any]:
    """The source of the vectors, as the stage `teachers.protocols` has it. names_hub: whether a task is on the hub."""
    if model == TF_IDF:
        return {"tfidf": True}
    if Path(model).is_file():
        return {"glove": model}
    if (Path(model) / "bilstm.json").is_file():
        return {"bilstm": model}
    check_request(model, names_hub=names_hub)
    return {"model": ModelSource.parse(model)}


class TestSetOptions(JsonOption):
    """Test sets on which two models are evaluated, beside each other."""

    sts: list[str] = Field(default=[])
    """Evaluate both on this table: sentence1, sentence2, score. May be repeated."""
    parallel: list[str] = Field(default=[])
    """Measure the translation accuracy of both: de=ENGLISH,GERMAN names two aligned files, de=TABLE a table with the
    columns en and de. May be repeated."""


class ShrinkOptions(TableOptions, TestSetOptions):
    """Options of making a model smaller, and its test sets."""

    trim: bool = True
    """Drop the tokens of the vocabulary that CORPUS does not use."""
    column: list[str] = Field(default=[])
    """Column of text in CORPUS, by name, or by position from 0; `text`, or the line, when absent. May be repeated."""
    prompt: str | None = None
    """Name of the model's prompt before each text; the model's default when absent."""


@command(encoders, names={"sts": "--sts FILE", "parallel": "--parallel LANGUAGE=FILES"}, rich_help_panel=PANEL)
def shrink(
    model: ModelArgument,
    corpus: Annotated[
        list[str], argument("CORPUS", f"Text in the languages the model is for; de=FILE names one. {FILE_HELP}")
    ],
    output: Annotated[Path, argument("OUT", "Folder of the smaller model, which must not exist.")],
    settings: Annotated[Fields, ShrinkSettings, "coverage", "layers", "intermediate_size", "dimensions", "precision"],
    options: ShrinkOptions,
) -> None:
    """Make a model smaller, and compare its size, speed and scores before and after.

    Trimming the vocabulary changes no vector of CORPUS, and makes no other text unknown.

    Name the language of a file, de=FILE, to keep further tokens of it: those that its held-out tenth needs.

    Fewer layers, neurons or dimensions do change vectors. A recipe can train the model again, with `students.distill`
    and `base = OUT`.

    For example:

      bertrelay shrink MODEL english.txt german.txt trimmed

      bertrelay shrink MODEL en=english.txt de=german.txt small --coverage 0.9995

      bertrelay shrink MODEL table.csv smaller --layers 4 --dimensions 128 --sts test.csv
    """
    from bertrelay.data.sentences import check_first

    columns: list[str | None] = [*options.column] or [None]
    named = [_language_and_file(text) for text in corpus]
    check_request(model)
    check_new(output, "OUT")
    with ExitStack() as opened:
        files = [(language, opened.enter_context(input_file(file, output))) for language, file in named]
        tables = [options.table(file, column) for _, file in files for column in columns]
        for table in tables:
            check_first(table)
        evaluated = _test_sets(options)
        languages = [language for language, _ in named for _ in columns]
        sources = [
            table.model_dump() | {"language": language or None}
            for table, language in zip(tables, languages, strict=True)
        ]
        by_language = {"corpus": sources, "languages": list(dict.fromkeys(filter(None, languages)))}
        values = {"model": model, **by_language, "trim_vocabulary": options.trim, **evaluated, **settings}
        values["prompt"] = options.prompt
        settled = validated(ShrinkSettings, values)
        from students.compress.shrink import run

        metrics = _written(run, settled, output, SHRINK_METRICS)
    if options.as_json:
        print_document("shrink", {"metrics": metrics}, output)
    else:
        write_out("\n".join(_lines(metrics, output)))


class ExportOptions(TestSetOptions):
    """Test sets on which model and graph are evaluated."""

    header: bool = True
    """A table of --sts begins with the names of its columns."""


EXPORT_OPTIONS = {"formats": "--format", "sts": "--sts FILE", "parallel": "--parallel LANGUAGE=FILES"}


@command(encoders, names=EXPORT_OPTIONS, rich_help_panel=PANEL)
def export(
    model: ModelArgument,
    output: Annotated[Path, argument("OUT", "Folder of the exported model, which must not exist.")],
    settings: Annotated[Fields, ExportSettings, "pair", "formats", "precision", "opset", "parent"],
    options: ExportOptions,
) -> None:
    """Export a model as a graph for ONNX Runtime or OpenVINO, or with its teacher as a pair; compare speed and scores.

    OUT of an encoder is a folder of sentence-transformers whose graph gives `sentence_embedding` for ids and mask. The
    graph of a tagger, outcome model or cross-encoder gives `logits`, that of a question answerer `start_logits` and
    `end_logits`.

    With --precision int8 the graph is smaller and its vectors differ a little; the command prints by how much.

    With --pair no graph is written, but a student and its teacher in one folder of sentence-transformers, a Router:
    `encode_query` is the student, `encode_document` the teacher.

    For example:

      bertrelay export MODEL with-graph

      bertrelay export MODEL small --precision int8 --sts test.csv

      bertrelay export MODEL both --format onnx --format openvino

      bertrelay export STUDENT pair --pair TEACHER

      bertrelay export TAGGER exported && bertrelay ner tag exported notes.txt entities.jsonl
    """
    check_request(model)
    check_new(output, "OUT")
    values = {
        "model": model,
        **_test_sets(options),
        **{name: value for name, value in settings.items() if value not in (None, [])},
    }
    settled = validated(ExportSettings, values)
    from students.compress.export import run

    metrics = _written(run, settled, output, EXPORT_METRICS)
    if options.as_json:
        print_document("export", {"metrics": metrics}, output)
        return
    from pipelines.report.tables import score_lines

    write_out("\n".join(score_lines({str(output): metrics}, {str(output): "students.export"}, intervals=True)))


def _test_sets(options: ShrinkOptions | ExportOptions) -> dict[str, Any]:
    """The keys `sts` and `parallel` of a recipe."""
    sts = {Path(file).name.partition(".")[0]: {"path": file, "header": options.header} for file in options.sts}
    if len(sts) < len(options.sts):
        raise RequestError("--sts: expected files with different names, which name their scores, found two of one")
    return {"sts": sts, "parallel": list(map(_translations, options.parallel))}


def _language_and_file(text: str) -> tuple[str, str]:
    """`de=FILE`, or a file alone; one that is there under all of the name is that."""
    language, _, file = text.partition("=")
    return (language, file) if CODE.fullmatch(language) and file and not Path(text).exists() else ("", text)


def _translations(text: str) -> dict[str, Any]:
    """A parallel source as a recipe writes it."""
    language, _, names = text.partition("=")
    match names.split(","):
        case [english, other] if english and other:
            return {"english": english, "other": other, "language": language}
        case [table] if table:
            return {"path": table, "others": {language: language}}
    raise RequestError(f"--parallel: expected LANGUAGE=ENGLISH,OTHER or LANGUAGE=TABLE, found {text}")


def _written(
    run: Callable[[Any, StageContext], Metrics],
    settings: ShrinkSettings | ExportSettings,
    output: Path,
    metrics_file: str,
) -> Metrics:
    """Writes the model that the stage makes, with its metrics in it; the stage reads a folder, also of a hub id."""
    from bertrelay.sources import model_folder

    located = settings.model_copy(update={"model": ModelSource.parse(str(model_folder(settings.model).resolve()))})
    with stopping_at_once("no output was written"):
        return write_model(run, located, output, metrics_file)


def _lines(metrics: Metrics, output: Path) -> Iterator[str]:
    """The metrics before and after in two columns, and how far vectors moved."""
    from pipelines.report.tables import metric_values

    values = metric_values(metrics)
    befores = {name: name.replace("/before", "") for name in values if "before" in name.split("/")}
    rows = [(bare, values[name], values[name.replace("/before", "/after")]) for name, bare in befores.items()]
    width = max(map(len, befores.values()))
    for name, before, after in [("", "before", "after"), *rows]:
        yield f"{name:{width}}  {before!s:>{METRIC_WIDTH}}  {after!s:>{METRIC_WIDTH}}"
    for name in filter(lambda name: name.startswith("coverage/"), values):
        yield f"{name.partition('/')[2]}: {values[name]} of the tokens of held-out text are cut as before"
    yield f"cosine to the vectors before: mean {metrics['cosine_mean']:.5f}, lowest {metrics['cosine_min']:.5f}"
    yield f"model   {output}"
