"""What was read of files of questions, counted; and the report on answers that were looked for by their words."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bertrelay.progress import log
from bertrelay.stage import Metrics
from domain.biomedical.answers.placing import ALIGNMENTS, Alignment
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.questions_settings import SPLITS


@dataclass
class Account:
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

    def figures(self) -> Metrics:
        """The counts under their names as metrics."""
        counts: Metrics = {"questions": self.questions.total()}
        counts |= {f"questions/{split}": self.questions[split] for split in SPLITS}
        counts |= {f"articles/{split}": len(self.articles[split]) for split in SPLITS}
        counts |= {name: self.kinds[name] for name in ("answers", "impossible", "without_answer")}
        counts |= {"answers_mended": self.notes["mended"], "answers_nowhere": self.notes["nowhere"]}
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

    def tell(self) -> None:
        """Says what was mended and what could not be."""
        tell_notes(self.notes, "; alignment.json has them question by question")


def tell_notes(notes: Mapping[str, int], more: str = "") -> None:
    """Says of answers, by the notes of their questions, what was mended, what stands nowhere, and how they were found.

    notes: the number of each. more: what to add where answers were looked for by their words.
    """
    counts = Counter(notes)
    if mended := counts["mended"]:
        log(f"mended the offsets of {mended:,} answers, which stood a few characters beside them")
    if nowhere := counts["nowhere"]:
        log(f"{nowhere:,} answers beside others stand nowhere in their context: scored by, and not learnt")
    if any(counts[how] for how in ALIGNMENTS):
        found = ", ".join(f"{counts[how]:,} {how}" for how in ALIGNMENTS)
        log(f"looked for the answers in every snippet: {found}{more}")
