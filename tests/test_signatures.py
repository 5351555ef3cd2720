"""Keyword arguments of public functions are the settings of their stages."""

import pytest
from pydantic import Field
from signatures import check_signature

from bertrelay.settings import Settings
from pipelines.cards.card import write_card
from pipelines.cards.settings import CardSettings
from students.mining.bitext import mine, mine_files
from students.mining.negatives import mine_negatives
from students.mining.settings import MineOptions, MineSettings, NegativeSettings
from students.searching.index import build_index, search
from students.searching.settings import IndexOptions
from teachers.evaluation.mteb import evaluate_tasks
from teachers.evaluation.settings import MtebSettings
from teachers.pairs.rerank import rerank_file
from teachers.pairs.settings import RerankOptions

FILES = {"model", "source", "target", "pairs", "output"}
HERE = {"cache", "process_group", "rejects"}
"""Arguments that a stage has from its context."""


@pytest.mark.parametrize(
    ("function", "settings", "except_", "beside"),
    [
        (build_index, IndexOptions, set(), set()),
        (search, IndexOptions, set(), {"top_k", "index", "ef_search", "mode", "lexical_weight"}),
        (mine, MineOptions, {"precision", "batch_tokens"}, set()),
        (mine_files, MineSettings, FILES | {"max_rejects"}, HERE | {"work", "overwrite"}),
        (mine_negatives, NegativeSettings, FILES | {"max_rejects"}, HERE | {"work", "overwrite"}),
        (rerank_file, RerankOptions, set(), HERE | {"engine", "overwrite"}),
        (evaluate_tasks, MtebSettings, {"model"}, {"results"}),
        (write_card, CardSettings, {"model", "name"}, {"name"}),
    ],
)
def test_keyword_arguments_are_the_settings(function, settings, except_, beside):
    check_signature(function, settings, except_=except_, beside=beside)


def test_a_missing_a_further_and_an_undescribed_argument_and_another_default_are_seen():
    class Options(Settings):
        k: int = 1
        words: list[str] = Field(default=[])

    def same(*, k: int = 1, words: tuple[str, ...] = ()) -> None:
        """Does nothing. k: a number. words: a list."""

    def other_default(*, k: int = 2, words: tuple[str, ...] = ()) -> None:
        """Does nothing. k: a number. words: a list."""

    def undescribed(*, k: int = 1, words: tuple[str, ...] = ()) -> None:
        """Does nothing with `Options`."""

    check_signature(same, Options)
    for function, options in ((same, {"except_": {"k"}}), (same, {"beside": {"k"}}), (other_default, {})):
        with pytest.raises(AssertionError):
            check_signature(function, Options, **options)
    with pytest.raises(AssertionError, match="without a description"):
        check_signature(undescribed, Options)
