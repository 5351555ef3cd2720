"""The stage `report.card`: a copy of a model with a model card, for Hugging Face's hub or for colleagues.

A card has recorded facts only: the settings, counts and metrics of finished stages, and the model folder's own.
Mitchell et al. (2019), "Model Cards for Model Reporting".
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from huggingface_hub import ModelCardData

from bertrelay.errors import RequestError
from bertrelay.files import write_text
from bertrelay.model.folder import ModelFolder
from bertrelay.model.kinds import ANSWERER, ENCODER, NETWORK, PREDICTOR, SCORER, TAGGER, ModelKind
from bertrelay.privacy import is_sensitive, sensitive_data
from bertrelay.settings import settings_of
from bertrelay.sources import model_folder
from bertrelay.stage import Metrics, StageContext, check_new, load, write_model
from pipelines.cards.content import Section, Subject, literal
from pipelines.cards.results import Result, hub_id, hub_metrics, model_verdicts, read_result, score_listings
from pipelines.cards.settings import CardSettings
from pipelines.cards.training import training_sections

README = "README.md"
SUBJECTS: dict[ModelKind | None, str] = {
    ENCODER: "encoder:describe",
    NETWORK: "encoder:describe",
    TAGGER: "heads:describe_tagger",
    ANSWERER: "heads:describe_answerer",
    SCORER: "heads:describe_scorer",
    PREDICTOR: "clinical:describe",
}
"""By kind of model: the function from settings, results and folder to the `Subject` of its card."""
INTERVAL = re.compile(r"\(.+ – .+\)")


def run(settings: CardSettings, context: StageContext) -> Metrics:
    """Writes `model/` with its card; only the main process does. Raises RequestError for a model without a task."""
    if not context.process_group.is_main:
        return {}
    source, output = model_folder(settings.model, cache=context.cache), context.output / "model"
    kind = ModelFolder(source).kind
    if kind not in SUBJECTS:
        actual = f"{kind.words}; {kind.use}" if kind else "none"
        raise RequestError(f"model: expected a model that a stage makes, for a task, found in {source} {actual}")
    results = [read_result(Path(folder), source) for folder in settings.results]
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(source, output, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".*"))
    subject: Subject = load(f"pipelines.cards.{SUBJECTS[kind]}")(settings, results, output)
    with_files = not (context.sensitive or is_sensitive() or kind is PREDICTOR)
    write_text(output / README, card_text(settings, results, subject, with_files))
    return {
        "languages": len(settings.languages or subject.languages),
        "evaluations": len(list(hub_metrics(results))),
    }


def write_card(
    model: str | Path,
    output: str | Path,
    *,
    results: Iterable[str | Path],
    license: str,  # noqa: A002 (the name of the setting)
    name: str | None = None,
    license_name: str | None = None,
    license_link: str | None = None,
    languages: Sequence[str] = (),
    base_model: Sequence[str] = (),
    teacher: str | None = None,
    datasets: Sequence[str] = (),
    description: str = "",
    limits: Sequence[str] = (),
) -> Path:
    """Copies `model` to the folder `output`, writes its card there, and returns the card's path.

    The copy of a clinical model is readable by its owner only.

    results: folders of finished stages, such as `runs/multi30k/test/latest`.
    name: of the model on the hub; that of `output` when absent. Others as in `CardSettings`.
    Raises RequestError for a folder that is no finished stage, an output that exists, and values that do not fit.
    """
    values, output = locals(), Path(output)
    check_new(output)
    values |= {"model": str(model), "results": list(map(str, results)), "name": name or output.name}
    settings = settings_of(CardSettings, values)
    is_clinical = ModelFolder(model_folder(settings.model)).kind is PREDICTOR
    with sensitive_data() if is_clinical else nullcontext():
        write_model(run, settings, output)
    return output / README


def card_text(settings: CardSettings, results: Sequence[Result], subject: Subject, with_files: bool = True) -> str:
    """The card: metadata in YAML, and Markdown. with_files: whether the names of data files are shown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipelines.cards", ""),
        autoescape=False,  # Markdown; cells are escaped where they are made
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("card.md.jinja").render(
        settings=settings,
        subject=subject,
        verdicts=[(label, verdict._replace(text=literal(verdict.text))) for label, verdict in model_verdicts(results)],
        trainings=list(_trainings(settings, results, with_files)),
        evaluation=list(_evaluation(results, subject)),
        limits=[*subject.limits, *settings.limits],
    )
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return f"---\n{_metadata(settings, results, subject).to_yaml()}\n---\n\n{text}\n"


def _trainings(settings: CardSettings, results: Sequence[Result], with_files: bool) -> Iterator[Section]:
    trainings = [result for result in results if result.is_training]
    for result in trainings:
        title = "Training" if len(trainings) == 1 else f"Training, {result.stage}"
        yield from training_sections(result, settings, title, with_files)


def _evaluation(results: Sequence[Result], subject: Subject) -> Iterator[Section]:
    """Yields a section for each table of test metrics, under a title."""
    tables = list(score_listings(results, lambda row: row not in subject.set_apart))
    if tables:
        has_intervals = any(INTERVAL.search(str(cell)) for _, table in tables for row in table.rows for cell in row)
        yield Section("Evaluation", ["In brackets are 95 % bootstrap intervals."] if has_intervals else [])
    yield from (Section(table.caption, [about], table, level=3) for about, table in tables)


def _metadata(settings: CardSettings, results: Sequence[Result], subject: Subject) -> ModelCardData:
    """Hugging Face's metadata; metrics are those of the published model only."""
    trainings = [result.done.parts for result in results if result.is_training]
    bases = [*settings.base_model, *(name for parts in trainings if (name := hub_id(parts.get("base"))))]
    sources = filter(None, (hub_id(part) for parts in trainings for key, part in parts.items() if key.endswith(".hub")))
    return ModelCardData(
        language=list(subject.languages) or settings.languages or None,
        license=settings.license,
        license_name=settings.license_name,
        license_link=settings.license_link,
        library_name=subject.library,
        pipeline_tag=subject.task,
        tags=[*subject.tags, "bertrelay"],
        base_model=list(dict.fromkeys(bases)) or None,
        datasets=list(dict.fromkeys([*settings.datasets, *sources])) or None,
        model_name=settings.name,
        eval_results=list(hub_metrics(results)) or None,
    )
