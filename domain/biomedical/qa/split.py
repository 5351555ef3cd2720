"""The stage `domain.questions`: files of questions read, answers located in their contexts, split by article.

Writes `train.jsonl`, `dev.jsonl` and `test.jsonl`, `rejects.jsonl`, and of BioASQ's questions `alignment.json`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.biomedical.qa.question_files import line_of, once, question_items, usable_questions
from domain.biomedical.qa.questions import ALIGNMENTS, Alignment, Item, Question
from domain.biomedical.qa.settings import SPLITS, QuestionsSettings, SplitShares
from domain.draws import place


@dataclass
class SplitSummary:
    """What was read, counted.

    notes: how answers were placed or found. aligned: of BioASQ's questions, the best way in which one was found in
    any of its snippets.
    """

    questions: Counter[str] = field(default_factory=Counter)
    articles: dict[str, set[int]] = field(default_factory=lambda: {split: set() for split in SPLITS})
    notes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    aligned: dict[str, Alignment] = field(default_factory=dict)

    def add(self, question: Question, split: str) -> None:
        """Counts one question."""
        self.questions[split] += 1
        self.articles[split].add(hash(question.document))
        self.notes.update(question.notes)
        self.kinds["answers"] += len(question.answers)
        self.kinds["impossible"] += question.impossible
        self.kinds["without_answer"] += not question.answers and not question.impossible
        best = self.aligned.get(question.pool, ALIGNMENTS[-1])
        found = [how for how in ALIGNMENTS if how in question.notes]
        if found:
            self.aligned[question.pool] = min([best, *found], key=ALIGNMENTS.index)

    def metrics(self) -> Metrics:
        """The counts under their names as metrics."""
        counts: Metrics = {"questions": self.questions.total()}
        counts |= {f"questions/{split}": self.questions[split] for split in SPLITS}
        counts |= {f"articles/{split}": len(self.articles[split]) for split in SPLITS}
        counts |= {name: self.kinds[name] for name in ("answers", "impossible", "without_answer")}
        counts |= {"answers_mended": self.notes["corrected"], "answers_nowhere": self.notes["nowhere"]}
        if self.aligned:
            counts |= {f"aligned/{how.replace(' ', '_')}": self.notes[how] for how in ALIGNMENTS}
        return counts

    def alignment(self, by_question: bool = True) -> dict[str, object]:
        """The alignment report: how answers were found, snippet by snippet and question by question."""
        best = Counter(self.aligned.values())
        return {
            "snippets": {how: self.notes[how] for how in ALIGNMENTS},
            "questions": {how: best[how] for how in ALIGNMENTS},
            "by_question": self.aligned if by_question else {},
        }

    def log(self) -> None:
        """Logs what was corrected and what could not be."""
        log_notes(self.notes, "; alignment.json has them question by question")


def log_notes(notes: Mapping[str, int], more: str = "") -> None:
    """Logs how answers were located, by the notes of their questions: corrected, not found, aligned.

    notes: the number of each. more: what to add where answers were located by their words.
    """
    counts = Counter(notes)
    if corrected := counts["corrected"]:
        log(f"corrected the offsets of {corrected:,} answers, which were a few characters off")
    if nowhere := counts["nowhere"]:
        log(f"{nowhere:,} further answers are not in their context: scored by, not trained on")
    if any(counts[how] for how in ALIGNMENTS):
        found = ", ".join(f"{counts[how]:,} {how}" for how in ALIGNMENTS)
        log(f"located the answers in every snippet: {found}{more}")


Key = tuple[str, int]


class ArticleGroups:
    """Questions joined as they come. A group is named by the first of its articles in the order of their names.

    So the split of an article that shares nothing with others depends on its name alone.
    """

    def __init__(self) -> None:
        self._above: dict[Key, Key] = {}
        self._names: dict[Key, str] = {}  # of the topmost

    def __len__(self) -> int:
        return len({self._top(key) for key in self._above})

    def join(self, question: Question) -> None:
        """Puts the article, the pool and the context of a question together."""
        keys = _keys(question)
        for key in keys:
            self._above.setdefault(key, key)
        tops = [self._top(key) for key in keys]
        self._names[tops[0]] = min([question.document, *(self._names[top] for top in tops if top in self._names)])
        for top in tops[1:]:
            self._above[top] = tops[0]

    def name(self, question: Question) -> str:
        """The name of the group that the question is in."""
        return self._names[self._top(_keys(question)[0])]

    def _top(self, key: Key) -> Key:
        while (above := self._above[key]) != key:
            self._above[key] = key = self._above[above]
        return key


def _keys(question: Question) -> list[Key]:
    pool = [("pool", hash(question.pool))] if question.pool else []
    return [("article", hash(question.document)), ("context", hash(question.context)), *pool]


def write_splits(settings: QuestionsSettings, folder: Path) -> Metrics:
    """The stage outside of a recipe: writes into `folder`."""
    return run_alone(run, settings, folder)


def run(settings: QuestionsSettings, context: StageContext) -> Metrics:
    """Reads twice: first which articles belong together, then where each question goes. Counts of what was found.

    Raises RequestError for a file that cannot be read and for a split without a question, WorkError for too many
    unusable ones.
    """
    if not context.process_group.is_main:
        return {}
    groups = ArticleGroups()
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        for question in usable_questions(_items(settings), rejects):
            groups.join(question)
    summary = _write(settings, groups, context.output)
    _check_splits(summary, settings, len(groups))
    if summary.aligned:
        by_question = settings.with_text or not context.sensitive
        write_json(context.output / "alignment.json", summary.alignment(by_question))
    summary.log()
    return {**summary.metrics(), "rejected": rejects.counts.total()}


def _write(settings: QuestionsSettings, groups: ArticleGroups, folder: Path) -> SplitSummary:
    summary = SplitSummary()
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_write(folder / f"{name}.jsonl")) for name in SPLITS]
        opened = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        files = dict(zip(SPLITS, opened, strict=True))
        for question in (item for item in once(_items(settings)) if isinstance(item, Question)):
            split = split_of(groups.name(question), str(settings.seed), settings.split)
            files[split].write(line_of(question))
            summary.add(question, split)
    return summary


def split_of(name: str, key: str, shares: SplitShares) -> str:
    """`train`, `dev` or `test`, by the name and the key alone."""
    where = place(name, key)
    if where < shares.test:
        return "test"
    return "dev" if where < shares.test + shares.dev else "train"


def _items(settings: QuestionsSettings) -> Iterator[Item]:
    return chain.from_iterable(question_items(each.path, each.format) for each in settings.files)


def _check_splits(summary: SplitSummary, settings: QuestionsSettings, groups: int) -> None:
    shares = settings.split.model_dump()
    empty = [name for name in SPLITS if shares[name] and not summary.questions[name]]
    if empty:
        raise RequestError(
            f"split: no question fell into {' and '.join(empty)}; there are {groups:,} groups of articles that share "
            f"nothing. Take another `seed` than {settings.seed}, or other shares."
        )
