"""The stage `domain.questions`: files of questions read, their answers put where they stand, split by article.

Writes `train.jsonl`, `dev.jsonl` and `test.jsonl`, `rejects.jsonl`, and of BioASQ's questions `alignment.json`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.biomedical.answers.account import Account
from domain.biomedical.answers.groups import Groups
from domain.biomedical.answers.items import Item
from domain.biomedical.answers.jsonl import line_of
from domain.biomedical.answers.question_files import once, question_items, usable
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.questions_settings import SPLITS, QuestionsSettings, SplitShares
from domain.places import place


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
    groups = Groups()
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        for question in usable(_items(settings), rejects):
            groups.join(question)
            rejects.used()
    account = _write(settings, groups, context.output)
    _check_splits(account, settings, len(groups))
    if account.aligned:
        by_question = settings.with_text or not context.sensitive
        write_json(context.output / "alignment.json", account.alignment(by_question))
    account.tell()
    return {**account.figures(), "rejected": rejects.counts.total()}


def _write(settings: QuestionsSettings, groups: Groups, folder: Path) -> Account:
    account = Account()
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_write(folder / f"{name}.jsonl")) for name in SPLITS]
        opened = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        files = dict(zip(SPLITS, opened, strict=True))
        for question in (item for item in once(_items(settings)) if isinstance(item, Question)):
            split = split_of(groups.name(question), str(settings.seed), settings.split)
            files[split].write(line_of(question))
            account.add(question, split)
    return account


def split_of(name: str, key: str, shares: SplitShares) -> str:
    """`train`, `dev` or `test`, by the name and the key alone."""
    where = place(name, key)
    if where < shares.test:
        return "test"
    return "dev" if where < shares.test + shares.dev else "train"


def _items(settings: QuestionsSettings) -> Iterator[Item]:
    return chain.from_iterable(question_items(each.path, each.format) for each in settings.files)


def _check_splits(account: Account, settings: QuestionsSettings, groups: int) -> None:
    shares = settings.split.model_dump()
    empty = [name for name in SPLITS if shares[name] and not account.questions[name]]
    if empty:
        raise RequestError(
            f"split: no question fell into {' and '.join(empty)}; there are {groups:,} groups of articles that share "
            f"nothing. Take another `seed` than {settings.seed}, or other shares."
        )
