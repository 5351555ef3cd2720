"""Writing questions about made-up abstracts, as SQuAD 2.0 has them."""

import json
from pathlib import Path
from random import Random

from pipelines.samples.entities import Abstracts
from pipelines.samples.questions import Json, article
from pipelines.samples.settings import QuestionSettings

PARTS = ("train", "dev", "test")


def write_questions(folder: Path, settings: QuestionSettings) -> dict[str, int]:
    """Writes `questions.train.json` and its like, a function of `settings` alone; questions by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for part, articles in draw_articles(settings).items():
        file = f"questions.{part}.json"
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in articles)
        (folder / file).write_text(f'{{"version": "v2.0", "data": [\n{lines}\n]}}\n', encoding="utf-8")
        counts[file] = sum(len(paragraph["qas"]) for each in articles for paragraph in each["paragraphs"])
    return counts


def draw_articles(settings: QuestionSettings) -> dict[str, list[Json]]:
    """The articles of each part; of equal sizes and seed their abstracts are those of `samples.entities`."""
    abstracts, random = Abstracts(settings.seed), Random(f"questions-{settings.seed}")
    sizes = {part: getattr(settings, part) for part in PARTS}
    return {
        part: [article(f"{part}-{number}", abstracts.tell(), random) for number in range(size)]
        for part, size in sizes.items()
    }
