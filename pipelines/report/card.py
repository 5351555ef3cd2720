"""The stage `report.card`: a copy of a model with a model card, for Hugging Face's hub or for colleagues.

What the card says comes from the results of stages: `corpus.json` and the settings of a training, the metrics of
evaluations with their intervals, and from the model itself. Mitchell et al. (2019), "Model Cards for Model Reporting".
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from langcodes import Language

from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_text
from bertrelay.fingerprint import Digests
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import settings_of
from bertrelay.sources import model_folder
from bertrelay.stage import Metrics, StageContext, check_new, write_model
from pipelines.registry import REGISTRY
from pipelines.report.card_settings import CardSettings
from pipelines.report.metrics import read_declarations
from pipelines.report.page import duration
from pipelines.report.tables import DEV, OTHER, Listing, MetricValue, metric_values, score_tables
from pipelines.report.verdicts import StageResult, verdicts
from pipelines.run.store import DIGITS, DONE, Done, read_done
from students.evaluate.verdicts import of_nearness, worst_of
from students.parallel.settings import ENGLISH

README = "README.md"
HUB, OUTPUT, FOLDER = "hub:", "output:", "folder:"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "bertrelay"]
LITERAL = {**{ord(sign): f"\\{sign}" for sign in "\\`*[]|"}, ord("<"): "&lt;", ord("&"): "&amp;"}
ADDRESS = re.compile(r":(?=//)|@(?=[\w-]+\.)|(?<=www)\.")
"""What makes text an address, which is a link without any sign of Markdown."""
NOT_SHOWN = ("uses", "parallel", "english", "dev", "train", "sts", "lookup", "max_rejects")
"""Settings of a training that are data, which the card has in words, or that say nothing to its readers."""


@dataclass(frozen=True)
class Result:
    """A finished stage: its name in the run, what it is made of and found, and the counts of a training's data.

    is_of_model: whether its metrics are of the model that is published.
    """

    stage: str
    done: Done
    corpus: dict[str, Any] | None
    is_of_model: bool

    @property
    def kind(self) -> str:
        """The kind of stage, as a recipe names it."""
        return str(self.done.parts["uses"])

    @property
    def label(self) -> str:
        """How tables call it."""
        return self.stage if self.is_of_model else f"{self.stage} (another model)"


def run(settings: CardSettings, context: StageContext) -> Metrics:
    """Writes `model/` with its card; only the main process does."""
    if not context.process_group.is_main:
        return {}
    source, output = model_folder(settings.model, cache=context.cache), context.output / "model"
    results = [read_result(Path(folder), source) for folder in settings.results]
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(source, output, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".*"))
    encoder = SentenceEncoder.load(output, "cpu", backend="torch")
    card = card_text(settings, results, encoder, with_files=not context.sensitive)
    write_text(output / README, card)
    return {"languages": len(_languages(settings, results)), "evaluations": len(list(_evaluations(results)))}


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

    results: folders of finished stages, such as `runs/multi30k/test/latest`.
    name: of the model on the hub; that of `output` when absent. Others as in `CardSettings`.
    Raises RequestError for a folder that is no finished stage, an output that exists, and values that do not fit.
    """
    values, output = locals(), Path(output)
    check_new(output)
    values |= {"model": str(model), "results": list(map(str, results)), "name": name or output.name}
    write_model(run, settings_of(CardSettings, values), output)
    return output / README


def read_result(folder: Path, model: Path) -> Result:
    """The result of a finished stage. Raises RequestError for a folder of anything else."""
    done = read_done(folder)
    if done is None:
        raise RequestError(
            f"results: expected the folder of a finished stage, with {DONE} in it, such as runs/RECIPE/STAGE/latest; "
            f"found none at {folder}"
        )
    return Result(folder.resolve().parent.name, done, read_json(folder / "corpus.json"), _is_of(done, folder, model))


def _is_of(done: Done, folder: Path, model: Path) -> bool:
    """Whether a stage made the model in the folder `model`, or evaluated it."""
    model, evaluated = model.resolve(), str(done.parts.get("model", ""))
    if model.is_relative_to(folder.resolve()):
        return True
    if evaluated.startswith(OUTPUT):
        return evaluated.removeprefix(OUTPUT)[:DIGITS] in model.parts
    if evaluated.startswith(FOLDER):
        return evaluated == f"{FOLDER}{Digests().of_folder(model)}"
    return evaluated.rpartition("@")[2] == model.name  # a revision of the hub names the folder


def card_text(
    settings: CardSettings, results: Sequence[Result], encoder: SentenceEncoder, with_files: bool = True
) -> str:
    """The card: metadata in YAML, and Markdown. with_files: whether the names of data files are shown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipelines.report", ""),
        autoescape=False,  # Markdown; cells are escaped where they are made
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    languages = _languages(settings, results)
    trainings = [result for result in results if result.corpus is not None]
    own = (StageResult(result.stage, result.kind, result.done.metrics) for result in results if result.is_of_model)
    found, tables = list(verdicts(own)), list(_score_tables(results))
    of_model = worst_of(result.done.metrics for result in results if result.is_of_model)
    text = environment.get_template("card.md.jinja").render(
        settings=settings,
        encoder=encoder,
        parameters=sum(weights.numel() for weights in encoder.parameters()),
        verdicts=[(label, verdict._replace(text=_cell(verdict.text))) for label, verdict in found],
        is_fit=all(verdict.level != "fail" for _, verdict in found),
        languages=languages,
        nearness=of_nearness(of_model, languages),
        trainings=[_training(result, settings, with_files) for result in trainings],
        tables=tables,
        has_intervals=any(
            isinstance(cell, str) and " – " in cell for *_, table in tables for row in table.rows for cell in row
        ),
        limits=[*_limits(encoder, languages, results), *settings.limits],
    )
    return f"---\n{_metadata(settings, results, languages).to_yaml()}\n---\n\n{text.strip()}\n"


def _metadata(settings: CardSettings, results: Sequence[Result], languages: Sequence[str]) -> ModelCardData:
    """Hugging Face's metadata; figures are those of the published model alone."""
    trainings = [result.done.parts for result in results if result.corpus is not None]
    bases = [*settings.base_model, *(name for parts in trainings if (name := hub_id(parts.get("base"))))]
    sources = (name for parts in trainings for key, part in parts.items() if key.endswith(".hub"))
    return ModelCardData(
        language=list(dict.fromkeys(str(Language.get(tag).language) for tag in languages)),
        license=settings.license,
        license_name=settings.license_name,
        license_link=settings.license_link,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, *(["multilingual"] if len(languages) > 1 else [])],
        base_model=list(dict.fromkeys(bases)) or None,
        datasets=list(dict.fromkeys([*settings.datasets, *filter(None, map(hub_id, sources))])) or None,
        model_name=settings.name,
        eval_results=list(_evaluations(results)) or None,
    )


def hub_id(part: object) -> str | None:
    """The hub id in a part of a fingerprint, without its revision."""
    return part.removeprefix(HUB).partition("@")[0] if isinstance(part, str) and part.startswith(HUB) else None


def _languages(settings: CardSettings, results: Sequence[Result]) -> list[str]:
    """The languages that the model is for, English first."""
    trained = (tag for result in results if result.corpus for tag in result.corpus["train"])
    return settings.languages or list(dict.fromkeys([ENGLISH, *trained]))


def _evaluations(results: Iterable[Result]) -> Iterator[EvalResult]:
    """The metrics of the published model that their families declare for the hub."""
    declarations = {stage.kind: read_declarations(stage.metrics) for stage in REGISTRY if stage.metrics}
    for result in results:
        values = metric_values(result.done.metrics) if result.is_of_model else {}
        for name, measured in values.items():
            bare = name.replace("/after/", "/")  # of a model that was made smaller; `before` is of another one
            hubs = (
                each.hub_names(bare) for each in declarations.get(result.kind, ()) if "before" not in name.split("/")
            )
            found = next(filter(None, hubs), None)
            if found is not None and measured.value is not None:
                interval = f" (95 % interval {measured.interval})" if measured.interval else ""
                yield EvalResult(
                    task_type=found.task,
                    dataset_type=f"{result.stage}-{found.dataset}".lower().replace(" ", "-"),
                    dataset_name=f"{result.stage}: {found.dataset}",
                    metric_type=found.metric,
                    metric_value=round(measured.value, 4),
                    metric_name=f"{found.metric.replace('_', ' ')}{interval}",
                )


def _training(result: Result, settings: CardSettings, with_files: bool) -> dict[str, Any]:
    """What the card says about a training: from what, on which pairs, with which settings, how long, with what."""
    corpus, parts = result.corpus or {}, result.done.parts
    without = corpus.get("english_without_translations", 0)
    counted = [
        *((source, source["language"], source["pairs"]) for source in corpus["sources"]),
        *((source, ENGLISH, source["sentences"]) for source in corpus.get("english_sources", [])),
    ]
    rows = [
        [
            _cell(_without_folders(source["source"])) if with_files else f"source {number}",
            *(language, f"{records:,}", f"{source.get('drawn', source.get('train', 0)):,}"),
        ]
        for number, (source, language, records) in enumerate(counted, 1)
    ]
    made_of = {
        "teacher": settings.teacher or _reference(parts.get("teacher")),
        "base": ", ".join(settings.base_model) or _reference(parts.get("base")),
    }
    own = {key: value for key, value in parts.items() if key not in made_of and _is_shown(key, value)}

    def listed(part: str) -> str:
        return ", ".join(f"{count:,} {tag}" for tag, count in corpus[part].items())

    return {
        "stage": result.stage,
        "made_of": {name: text for name, text in made_of.items() if text},
        "own_vectors": parts.get("own_vectors", False),
        "english": f"{corpus['english']:,}",
        "translations": listed("train"),
        "held_out": listed("dev"),
        "untrained": listed("dev_untrained"),
        "without_translations": f"{without:,}" if without else "",
        "retained": f"{corpus['retained']:,}" if corpus["retained"] else "",
        "sources": Listing(
            "", ["Source", "Language", "Pairs or sentences" if without else "Pairs", "Trained on"], rows, texts=2
        ),
        "settings": "\n".join(f"{key} = {json.dumps(value)}" for key, value in own.items()),
        "time": duration(result.done.seconds),
        "libraries": ", ".join(f"{name} {version}" for name, version in result.done.libraries.items()),
    }


def _without_folders(source: str) -> str:
    """A source as `corpus.json` names it, without the folders of this machine."""
    return " + ".join(Path(part).name if part.startswith("/") else part for part in source.split(" + "))


def _reference(part: object) -> str | None:
    """A model among the parts of a fingerprint: of the hub with its revision, of a folder its digest, else None."""
    if not isinstance(part, str) or not part.startswith((HUB, FOLDER)):
        return None
    return f"a folder, sha256 {part.removeprefix(FOLDER)}" if part.startswith(FOLDER) else part.removeprefix(HUB)


def _is_shown(key: str, value: object) -> bool:
    is_digest = isinstance(value, str) and value.startswith((OUTPUT, FOLDER, "file:"))
    return value is not None and not is_digest and re.split(r"[.\[]", key)[0] not in NOT_SHOWN


def _score_tables(results: Sequence[Result]) -> Iterator[tuple[str, str, Listing]]:
    """Title, explanation (of a family once) and table of all test metrics, values with their intervals."""
    named = {result.label: result for result in results}
    kinds = {label: result.kind for label, result in named.items()}
    explained = set()
    for table in score_tables({label: result.done.metrics for label, result in named.items()}, kinds):
        if table.family not in (DEV, OTHER):
            columns = ["", *(": ".join(filter(None, column)) for column in table.columns)]
            rows = [[_cell(row), *map(_measured, table.cells(row))] for row in table.rows]
            title = _cell(" · ".join(filter(None, [table.family.title, table.caption])))
            about = "" if table.about in explained else table.about
            explained.add(about)
            yield title, about, Listing(title, list(map(_cell, columns)), rows)


def _measured(value: MetricValue) -> str:
    return f"{value} ({value.interval})" if value.interval else str(value)


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table, as it is written: no link, image or address in it is live."""
    literal = " ".join(text.split()).translate(LITERAL)
    return ADDRESS.sub(lambda sign: f"&#{ord(sign[0])};", literal)


def _limits(encoder: SentenceEncoder, languages: Sequence[str], results: Sequence[Result]) -> Iterator[str]:
    """What is known to limit the use of the model."""
    yield f"Longer inputs are cut to {encoder.max_tokens:,} tokens, special tokens included."
    measured = {part for result in results if result.is_of_model for name in _test_metrics(result) for part in name}
    if untested := [tag for tag in languages if tag not in measured]:
        yield f"No test above is in {', '.join(untested)}."
    yield "Languages and domains other than those of the training data and tests above are not measured."
    yield (
        "Biases of the models it was made from and of their data stay; vectors compare meaning as these data show it, "
        "and are no proof that two texts say the same."
    )


def _test_metrics(result: Result) -> Iterator[list[str]]:
    """The parts of the names of test metrics: `en-de` gives `en` and `de`."""
    return (re.split(r"[/ -]", name) for name in result.done.metrics if not name.startswith("dev/"))
