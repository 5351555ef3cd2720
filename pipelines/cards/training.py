"""The sections of a card on a training: base and teacher, method, settings, libraries and data."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertrelay.evaluation.verdict import listed
from pipelines.cards.content import Section, literal
from pipelines.cards.results import FOLDER, OUTPUT, Result, model_reference
from pipelines.cards.settings import CardSettings
from pipelines.report.page import duration
from pipelines.report.tables import Listing
from students.parallel.settings import ENGLISH

METHODS = {
    "students.distill": "Multilingual distillation (Reimers & Gurevych 2020): the model was trained to give English "
    "sentences and their translations the teacher's vector of the English.",
    "teachers.train": "Both sentences of a pair pass through the same network (Reimers & Gurevych 2019).",
    "teachers.cross-encoder": "The network reads both sentences of a pair at once, and its head gives their score.",
    "teachers.poly-encoder": "A few learned codes attend to the first sentence of a pair, and the second to these "
    "(Humeau et al. 2020).",
    "domain.ner": "The head gives each word the tag of an entity from the vector of its first subword.",
    "domain.qa": "The head scores each subword as the first and as the last one of an answer (Devlin et al. 2019).",
    "domain.readmission": "The head reads chunks of the notes of an admission; its probability is that of all its "
    "chunks together (Huang, Altosaar & Ranganath 2019).",
}
METHODS["domain.outcome"] = METHODS["domain.readmission"]
OWN_VECTORS = "the teacher's vector of each."
NOT_SHOWN = ("uses", "parallel", "english", "dev", "train", "sts", "lookup", "max_rejects")
"""Settings of a training that are data, which the card has in words, or that say nothing to its readers."""
NO_DATA = ("train_steps", "train_seconds")


def training_sections(result: Result, settings: CardSettings, title: str, with_files: bool) -> Iterator[Section]:
    """Yields the section of a training, and of a student's that of its data.

    with_files: names of data files are shown.
    """
    parts = result.done.parts
    made_of = {
        "teacher": settings.teacher or model_reference(parts.get("teacher")),
        "base": ", ".join(settings.base_model) or model_reference(parts.get("base")),
    }
    method = METHODS.get(result.kind, "")
    if parts.get("own_vectors"):
        method = method.replace("the teacher's vector of the English.", OWN_VECTORS)
    shown = {key: value for key, value in parts.items() if key not in made_of and _is_shown(key, value)}
    yield Section(
        title,
        [
            "\n".join(f"- {name}: {model}" for name, model in made_of.items() if model),
            f"{method} It took {duration(result.done.seconds)}.".lstrip(),
            _counts(result),
            "\n".join(["```toml", *(f"{key} = {json.dumps(value)}" for key, value in shown.items()), "```"]),
            f"Libraries: {', '.join(f'{name} {version}' for name, version in result.done.libraries.items())}.",
        ],
    )
    if result.corpus is not None:
        yield _parallel_data(result.corpus, with_files)


def _is_shown(key: str, value: object) -> bool:
    is_digest = isinstance(value, str) and value.startswith((OUTPUT, FOLDER, "file:"))
    return value is not None and not is_digest and re.split(r"[.\[]", key)[0] not in NOT_SHOWN


def _counts(result: Result) -> str:
    """`Trained on 5,424 sentences and 135,701 words.`, from the metrics of the training."""
    counts = {name: value for name, value in result.done.metrics.items() if name not in NO_DATA and value is not None}
    words = [
        f"{value:,.0f} {name.removeprefix('train_').replace('_', ' ')}"
        for name, value in counts.items()
        if name.startswith("train_")
    ]
    return f"Trained on {listed(words)}." if words and result.corpus is None else ""


def _parallel_data(corpus: dict[str, Any], with_files: bool) -> Section:
    """The sentences of a student's training, by source and language."""
    without = corpus.get("english_without_translations", 0)
    counted = [
        *((source, source["language"], source["pairs"]) for source in corpus["sources"]),
        *((source, ENGLISH, source["sentences"]) for source in corpus.get("english_sources", [])),
    ]
    rows = [
        [
            literal(_without_folders(source["source"])) if with_files else f"source {number}",
            *(language, f"{records:,}", f"{source.get('drawn', source.get('train', 0)):,}"),
        ]
        for number, (source, language, records) in enumerate(counted, 1)
    ]

    def by_language(part: str) -> str:
        return ", ".join(f"{count:,} {tag}" for tag, count in corpus[part].items())

    sentences = {
        f"{corpus['english']:,} English sentences to train on, with translations": by_language("train"),
        "English sentences without translations": f"{without:,}" if without else "",
        "Other texts whose vectors are kept": f"{corpus['retained']:,}" if corpus["retained"] else "",
        "Held out to choose weights by": by_language("dev"),
        "Weights are chosen by sentences of other sources as well": by_language("dev_untrained"),
    }
    columns = ["Source", "Language", "Pairs or sentences" if without else "Pairs", "Trained on"]
    text = " ".join(f"{name}: {count}." for name, count in sentences.items() if count)
    return Section("Data", [text], Listing("", columns, rows, texts=2), level=3)


def _without_folders(source: str) -> str:
    """A source as `corpus.json` names it, without the folders of this machine."""
    return " + ".join(Path(part).name if part.startswith("/") else part for part in source.split(" + "))
