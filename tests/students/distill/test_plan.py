"""Plans within a budget: by arithmetic, measured, kept by a resumed run."""

import json

import numpy as np
import pytest
from corpora import aligned, build
from pydantic import ValidationError

from bertrelay.training import checkpoint
from students.distill import plan as module
from students.distill.epochs import draw_english
from students.distill.plan import Costs, Plan, sizes_within
from students.distill.settings import DistillSettings
from students.distill.train import run

PAIRS = Costs(encode_pairs=100, pass_pairs=100)
BOTH = Costs(encode_pairs=100, pass_pairs=100, encode_english=0.2, pass_english=0.1, english=5_000)


@pytest.mark.parametrize(
    ("seconds", "costs", "expected"),
    [
        (100, PAIRS, (0.5, 0, 1)),  # half of the pairs
        (250, PAIRS, (1, 0, 1)),
        (300, PAIRS, (1, 0, 2)),  # vectors once, and two passes
        (10_000, PAIRS, (1, 0, 4)),
        (1_000, BOTH, (1, 2_666, 1)),
        (300, BOTH, (0.75, 500, 1)),  # half of the time for pairs
        (1_000, BOTH._replace(english=1_000), (1, 1_000, 3)),  # 500 for all, and two passes of 200 more
        (320, BOTH._replace(english=500), (0.85, 500, 1)),  # what 500 sentences leave
        (5_000, BOTH._replace(encode_pairs=0, encode_english=0), (1, 5_000, 4)),  # all vectors are there
    ],
)
def test_sizes_by_hand(seconds, costs, expected):
    sizes = sizes_within(seconds, costs)
    assert (sizes.pairs, sizes.english, sizes.epochs) == (pytest.approx(expected[0]), *expected[1:])
    one_pass = sizes.pairs * costs.pass_pairs + sizes.english * costs.pass_english
    encoding = sizes.pairs * costs.encode_pairs + sizes.english * costs.encode_english
    assert encoding + sizes.epochs * one_pass <= seconds + 1e-6


def test_what_is_planned_is_no_setting():
    settings = {"teacher": "./t", "base": "./b", "parallel": [{"path": "a.tsv", "others": {"de": "de"}}]}
    for wrong in ({"epochs": 2}, {"english": [{"path": "a.txt"}], "english_per_epoch": 9}):
        with pytest.raises(ValidationError, match="without effect, because budget_minutes is 5"):
            DistillSettings.model_validate({**settings, "budget_minutes": 5.0, **wrong})
    with pytest.raises(ValidationError, match="budget_minutes"):
        DistillSettings.model_validate({**settings, "budget_minutes": 0.0})


def test_a_part_of_the_parallel_text_has_the_translations_of_its_english(tmp_path):
    pairs = [(f"sentence number {n}", f"Satz {n} {form}") for n in range(40) for form in "ab"]
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs), aligned(tmp_path, "fr", pairs[:40])])
    settings = DistillSettings.model_validate(
        {"teacher": "./t", "base": "./b", "parallel": [{"path": "a.tsv", "others": {"de": "de"}}]}
    )
    part, epoch_items = draw_english(corpus, settings, tmp_path / "drawn", translated=10)
    english = part.english.read(0, 40)
    numbers = [int(sentence.split()[-1]) for sentence in english]
    german = {f"Satz {number} {form}" for number in numbers for form in "ab"}
    french = 2 * sum(number < 20 for number in numbers)
    assert epoch_items is None and (len(english), part.translated, len(german)) == (10, 10, 20) and 0 < french < 20
    translations = part.translations.read(0, 99)
    assert set(translations[:20]) == german and len(translations) == 20 + french
    facts = part.facts
    assert (facts["english"], facts["items"], facts["train"]) == (10, len(part), {"de": 20, "fr": french})
    assert [(source["train"], source["drawn"]) for source in facts["sources"]] == [(80, 20), (40, french)]
    assert corpus.facts["train"] == {"de": 80, "fr": 40}


@pytest.fixture
def settings(tiny_encoder, toy, tmp_path):
    """A student of 190 pairs and 60 English sentences, for so many minutes."""
    tiny_encoder("bert", [row[0] for row in toy.train], normalize=True).save(tmp_path / "teacher")
    (tmp_path / "english.txt").write_text("".join(f"{'so ' * n}it is\n" for n in range(1, 61)))
    return lambda minutes, **more: DistillSettings.model_validate(
        {
            "teacher": str(tmp_path / "teacher"),
            "base": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 200, "max_tokens": 24, "dropout": 0.1},
            "parallel": [toy.source()],
            "english": [{"path": str(tmp_path / "english.txt")}],
            "precision": "fp32",
            "batch_tokens": 300,
            "dev_sentences": 10,
            "checkpoint_every": 5,
            "budget_minutes": minutes,
            **more,
        }
    )


@pytest.mark.promise("A plan within a budget is made once", about="resume")
def test_a_plan_is_made_once_and_a_killed_run_keeps_it_and_its_bits(settings, context, monkeypatch, kill_at):
    """The student would be planned with other rates when it is resumed."""
    kill_at(checkpoint, "save_checkpoint", 2, lambda: run(settings(60.0), context))
    plan = json.loads((context.output / "plan.json").read_text())
    monkeypatch.setattr(module, "_time_steps", lambda *_: pytest.fail("planned again"))
    metrics = run(settings(60.0), context)
    assert metrics["plan/epochs"] == plan["epochs"] == module.MOST_EPOCHS  # there is time for more
    assert (plan["translated"], plan["english"]) == (190, 60)
    assert metrics["train_steps"] == pytest.approx(plan["steps"], rel=0.2)
    killed = (context.output / "model/model.safetensors").read_bytes()
    whole = type(context)(context.output.parent / "whole", context.cache)
    whole.output.mkdir()
    (whole.output / "plan.json").write_text(json.dumps(plan))
    run(settings(60.0), whole)
    assert (whole.output / "model/model.safetensors").read_bytes() == killed


def test_a_run_killed_while_it_measures_times_the_teacher_anew(settings, context, monkeypatch, kill_at):
    """The store then has the vectors of the first sample, and a teacher without work would seem to cost nothing."""
    monkeypatch.setattr(module, "SAMPLE", 8)
    kill_at(module, "_time_steps", 1, lambda: run(settings(0.1), context))
    monkeypatch.setattr(module, "_time_steps", lambda *_: 300.0)  # tokens a second
    assert run(settings(0.1), context)["plan/teacher_sentences_per_second"] > 0


def test_a_short_budget_takes_a_part_of_both_and_encodes_no_more(settings, context, monkeypatch):
    monkeypatch.setattr(module, "_time_steps", lambda *_: 300.0)  # tokens a second
    monkeypatch.setattr(module, "SAMPLE", 8)
    metrics = run(settings(0.1), context)
    plan = Plan(**json.loads((context.output / "plan.json").read_text()))
    assert 0 < plan.translated < 190 and 0 < plan.english < 60 and plan.epochs == 1
    assert plan.teacher_minutes + plan.training_minutes == pytest.approx(0.1, rel=0.05)
    [digests] = context.cache.folder.glob("targets/*/digests.bin")
    encoded = digests.stat().st_size // 16
    assert encoded <= plan.new_vectors + 8 + 2
    assert metrics["english_items"] == plan.english and metrics["plan/english"] == plan.english
    assert np.isclose(metrics["plan/training_minutes"], plan.training_minutes)
