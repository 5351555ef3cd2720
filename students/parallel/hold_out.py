"""Parallel text in two parts, to train on and to test on, that share no English sentence."""

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.stage import Metrics, StageContext
from students.parallel.pairs import read_translations
from students.parallel.settings import SplitSettings
from students.parallel.split import sentence_digest


def run(settings: SplitSettings, context: StageContext) -> Metrics:
    """Writes `train/en-<language>.tsv` and `test/en-<language>.tsv`, English and its translation in a line.

    English sentences are the same whatever their case. Which are held out depends on their text and the seed only.
    Returns the number of pairs as `train/<language>` and `test/<language>`.
    """
    settings.log_missing_languages()
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        translations = read_translations(settings.parallel, context.cache, rejects)
    english = {sentence for pairs in translations.values() for sentence in pairs.english}
    digests = sorted({sentence_digest(sentence, settings.seed) for sentence in english})
    held_out = set(digests[: min(settings.test_sentences, len(digests) // 10)])
    if not held_out:
        raise RequestError(f"parallel: expected 10 different English sentences or more, found {len(digests)}")
    metrics: Metrics = {}
    for language, pairs in translations.items():
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for source, other in zip(*pairs, strict=True):
            part = "test" if sentence_digest(source, settings.seed) in held_out else "train"
            lines[part].append(f"{source}\t{other}\n")
        for part, listed in lines.items():
            path = context.output / part / f"en-{language}.tsv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(listed), encoding="utf-8")
            metrics[f"{part}/{language}"] = len(listed)
    return metrics
