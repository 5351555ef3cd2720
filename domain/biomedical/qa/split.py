"""The stage `domain.questions`: files of questions read, answers located in their contexts, split by article.

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
from domain.biomedical.qa.question_files import line_of, log_notes, once, source_items, usable_questions
from domain.biomedical.qa.questions import ALIGNMENTS, Question
from domain.biomedical.qa.settings import SPLITS, QuestionsSettings, SplitShares
from domain.draws import place

ArticleGroups = dict[int, str]
"""The name of the group that an article is in, by the hash of the article's name."""


def run(settings: QuestionsSettings, context: StageContext) -> Metrics:
    """Reads twice: first which articles belong together, then where each question goes. Counts of what was found.

    Raises RequestError for a file that cannot be read and for a split without a question, WorkError for too many
    unusable ones.
    """
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        groups = article_groups(usable_questions(source_items(settings.files), rejects))
    summary = SplitSummary()
    with ExitStack() as stack:
        paths = {name: stack.enter_context(atomic_write(context.output / f"{name}.jsonl")) for name in SPLITS}
        files = {
            name: stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for name, path in paths.items()
        }
        for question in once(source_items(settings.files)):
            if isinstance(question, Question):
                split = split_of(groups[hash(question.document)], str(settings.seed), settings.split)
                files[split].write(line_of(question))
                summary.add(question, split)
    _check_splits(summary, settings, len(set(groups.values())))
    if summary.aligned:
        by_question = settings.with_text or not context.sensitive
        write_json(context.output / "alignment.json", summary.alignment(by_question))
    log_notes(summary.notes, "; alignment.json has them question by question")
    return {**summary.metrics(), "rejected": rejects.counts.total()}


class SplitSummary:
    """What was read, counted.

    counts: by metric. notes: how answers were placed or found. aligned: of BioASQ's questions, the best way in which
    one was found in any of its snippets.
    """

    def __init__(self) -> None:
        names = ["questions", *(f"questions/{split}" for split in SPLITS), "answers", "impossible", "without_answer"]
        self.counts, self.notes = Counter[str](dict.fromkeys(names, 0)), Counter[str]()
        self.articles: dict[str, set[int]] = {split: set() for split in SPLITS}
        self.aligned: dict[str, str] = {}

    def add(self, question: Question, split: str) -> None:
        """Counts one question."""
        self.articles[split].add(hash(question.document))
        self.notes.update(question.notes)
        self.counts.update(
            {
                "questions": 1,
                f"questions/{split}": 1,
                "answers": len(question.answers),
                "impossible": question.impossible,
                "without_answer": not question.is_known,
            }
        )
        if found := [how for how in ALIGNMENTS if how in (*question.notes, self.aligned.get(question.pool))]:
            self.aligned[question.pool] = found[0]

    def metrics(self) -> Metrics:
        """The counts under their names as metrics."""
        counts: Metrics = {**self.counts, **{f"articles/{split}": len(self.articles[split]) for split in SPLITS}}
        counts |= {"answers_mended": self.notes["corrected"], "answers_nowhere": self.notes["nowhere"]}
        if self.aligned:
            counts |= {f"aligned/{how.replace(' ', '_')}": self.notes[how] for how in ALIGNMENTS}
        return counts

    def alignment(self, by_question: bool) -> dict[str, object]:
        """The alignment report: how answers were found, snippet by snippet and question by question."""
        best = Counter(self.aligned.values())
        return {
            "snippets": {how: self.notes[how] for how in ALIGNMENTS},
            "questions": {how: best[how] for how in ALIGNMENTS},
            "by_question": self.aligned if by_question else {},
        }


def article_groups(questions: Iterable[Question]) -> ArticleGroups:
    """Articles that share a context or a pooled question, joined, and those joined with these, and so on.

    A group is named by the first of its articles in the order of their names, so that the split of an article that
    shares nothing with others depends on its name alone.
    """
    names, shared = dict[int, str](), defaultdict[tuple[str, int], set[int]](set)
    for question in questions:
        article = hash(question.document)
        names[article] = question.document
        shared["context", hash(question.context)].add(article)
        if question.pool:
            shared["pool", hash(question.pool)].add(article)
    number = {article: at for at, article in enumerate(names)}
    pairs = [(number[min(each)], number[article]) for each in shared.values() for article in each]
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    links = coo_array(([True] * len(pairs), (first, second)), shape=(len(names), len(names)))
    group = pd.Series(connected_components(links, directed=False)[1])
    documents = pd.Series(list(names.values()), dtype=object)
    return dict(zip(names, documents.groupby(group).transform("min"), strict=True))


def split_of(name: str, key: str, shares: SplitShares) -> str:
    """`train`, `dev` or `test`, by the name and the key alone."""
    where = place(name, key)
    if where < shares.test:
        return "test"
    return "dev" if where < shares.test + shares.dev else "train"


def _check_splits(summary: SplitSummary, settings: QuestionsSettings, groups: int) -> None:
    shares = settings.split.model_dump()
    empty = [name for name in SPLITS if shares[name] and not summary.counts[f"questions/{name}"]]
    if empty:
        raise RequestError(
            f"split: no question fell into {' and '.join(empty)}; there are {groups:,} groups of articles that share "
            f"nothing. Take another `seed` than {settings.seed}, or other shares."
        )
