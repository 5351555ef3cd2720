"""The stage `domain.questions`: reads files of questions, locates their answers, and splits them by article.

Writes `train.jsonl`, `dev.jsonl` and `test.jsonl`, `rejects.jsonl`, and of BioASQ's questions `alignment.json`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack

import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.qa.data import ALIGNMENTS, Question
from domain.biomedical.qa.question_files import line_of, log_notes, source_items
from domain.biomedical.qa.settings import SPLITS, QuestionsSettings
from domain.reading import usable
from domain.sampling import split_of


def run(settings: QuestionsSettings, context: StageContext) -> Metrics:
    """Splits the questions; returns their counts. Reads twice: for the groups of articles, then for the questions.

    Raises RequestError for a file that cannot be read and for a split without a question, WorkError for too many
    unusable questions.
    """
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        groups = article_groups(usable(source_items(settings.files), rejects))
    names = ["questions", *(f"questions/{split}" for split in SPLITS), "answers", "impossible", "without_answer"]
    counts, notes = Counter[str](dict.fromkeys(names, 0)), Counter[str]()
    articles: dict[str, set[int]] = {split: set() for split in SPLITS}
    shares = {"test": settings.split.test, "dev": settings.split.dev}
    aligned = dict[str, str]()  # the best alignment in any snippet, by BioASQ's question
    with ExitStack() as stack:
        paths = {name: stack.enter_context(atomic_write(context.output / f"{name}.jsonl")) for name in SPLITS}
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for name, path in paths.items()
        }
        for question in source_items(settings.files):
            if isinstance(question, Question):
                article = hash(question.document)
                split = split_of(groups[article], str(settings.seed), shares)
                files[split].write(line_of(question))
                counts.update(["questions", f"questions/{split}"])
                counts["answers"] += len(question.answers)
                counts["impossible"] += question.impossible
                counts["without_answer"] += not question.is_registered
                articles[split].add(article)
                notes.update(question.notes)
                if notes_best_first := [
                    note for note in ALIGNMENTS if note in (*question.notes, aligned.get(question.pool))
                ]:
                    aligned[question.pool] = notes_best_first[0]
    _check_splits(counts, settings, len(set(groups.values())))
    metrics: Metrics = {**counts, **{f"articles/{split}": len(articles[split]) for split in SPLITS}}
    metrics |= {"answers_repaired": notes["corrected"], "answers_nowhere": notes["nowhere"]}
    if aligned:
        metrics |= {f"aligned/{note.replace(' ', '_')}": notes[note] for note in ALIGNMENTS}
        best, has_ids = Counter(aligned.values()), settings.with_text or not context.sensitive
        alignment = {
            "snippets": {note: notes[note] for note in ALIGNMENTS},
            "questions": {note: best[note] for note in ALIGNMENTS},
            "by_question": aligned if has_ids else {},
        }
        write_json(context.output / "alignment.json", alignment)
    log_notes(notes, "; alignment.json has them question by question")
    return {**metrics, "rejected": rejects.counts.total()}


def article_groups(questions: Iterable[Question]) -> dict[int, str]:
    """The group of each article, by the hash of the article's name.

    Articles that share a context or a pooled question are of one group. Its name is the first of the names of its
    articles in alphabetical order, so that the split of an article that shares nothing depends only on its name: with
    a context in articles b and c, the groups of a, b and c are a, b and b.
    """
    names, shared = dict[int, str](), defaultdict[tuple[str, int], set[int]](set)
    for question in questions:
        article = hash(question.document)
        names[article] = question.document
        shared["context", hash(question.context)].add(article)
        if question.pool:
            shared["pool", hash(question.pool)].add(article)
    number = {article: at for at, article in enumerate(names)}
    pairs = [(number[min(sharing)], number[article]) for sharing in shared.values() for article in sharing]
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    links = coo_array(([True] * len(pairs), (first, second)), shape=(len(names), len(names)))
    group = pd.Series(connected_components(links, directed=False)[1])
    documents = pd.Series(list(names.values()), dtype=object)
    return dict(zip(names, documents.groupby(group).transform("min"), strict=True))


def _check_splits(counts: Counter[str], settings: QuestionsSettings, groups: int) -> None:
    shares = settings.split.model_dump()
    empty = [name for name in SPLITS if shares[name] and not counts[f"questions/{name}"]]
    if empty:
        raise RequestError(
            f"split: no question fell into {' and '.join(empty)}; there are {groups:,} groups of articles that share "
            f"nothing. Take another `seed` than {settings.seed}, or other fractions."
        )
