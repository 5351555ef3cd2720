"""The stage `domain.questions`: splits by article, its metrics, and that no question changes its split."""

import json
import random

import pytest
from real_files import COVID, with_covid

from bertrelay.errors import RequestError, WorkError
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.question_files import read_questions, write_questions
from domain.biomedical.qa.settings import QuestionsSettings
from domain.biomedical.qa.split import SPLITS, article_groups, run


def questions_of(articles, per_article=3):
    return [
        Question(f"{name}-{number}", "q?", f"{name} is {number}", (Answer(str(number), len(name) + 4),), document=name)
        for name in articles
        for number in range(per_article)
    ]


def split(context, questions, tmp_path, **settings):
    write_questions(tmp_path / "in.jsonl", questions, overwrite=True)
    return run(QuestionsSettings(files=[{"path": str(tmp_path / "in.jsonl")}], **settings), context)


def written(context):
    empty = [name for name in SPLITS if not (context.output / f"{name}.jsonl").stat().st_size]
    return {name: [] if name in empty else list(read_questions(context.output / f"{name}.jsonl")) for name in SPLITS}


ARTICLES = [f"article {number}" for number in range(200)]


def test_every_question_of_an_article_is_in_one_split_of_the_share_asked_for_and_none_is_lost(context, tmp_path):
    questions = questions_of(ARTICLES)
    random.Random(0).shuffle(questions)
    shares = {"train": 0.5, "dev": 0.1, "test": 0.4}
    metrics = split(context, questions, tmp_path, split=shares)
    parts = written(context)
    ids = sorted(question.id for part in parts.values() for question in part)
    assert ids == sorted(question.id for question in questions)
    articles = {name: {question.document for question in part} for name, part in parts.items()}
    assert articles["train"] | articles["dev"] | articles["test"] == set(ARTICLES)
    assert sum(map(len, articles.values())) == 200
    assert {name: len(part) / 200 for name, part in articles.items()} == pytest.approx(shares, abs=0.08)
    assert {name: metrics[f"articles/{name}"] for name in SPLITS} == {name: len(articles[name]) for name in SPLITS}
    assert {name: metrics[f"questions/{name}"] for name in SPLITS} == {name: len(parts[name]) for name in SPLITS}
    assert metrics["questions"] == metrics["answers"] == 600


def test_no_article_moves_when_others_come_and_another_seed_is_another_split(context, tmp_path):
    split(context, questions_of(ARTICLES[:100]), tmp_path)
    before = {question.id: name for name, part in written(context).items() for question in part}
    split(context, questions_of(ARTICLES), tmp_path)
    after = {question.id: name for name, part in written(context).items() for question in part}
    assert before == {name: after[name] for name in before}
    split(context, questions_of(ARTICLES), tmp_path, seed=2)
    assert after != {question.id: name for name, part in written(context).items() for question in part}


def names(groups, questions):
    return [groups[hash(question.document)] for question in questions]


def test_articles_that_share_a_context_or_a_question_stay_together():
    questions = [
        Question("1", "q", "one", document="b"),
        Question("2", "q", "two", document="a"),
        Question("3", "q", "three", document="c"),
        Question("4", "q", "two", document="b"),  # a and b share a context
        Question("p_1", "q", "four", document="z", pool="p"),
        Question("p_2", "q", "five", document="c", pool="p"),  # c and z are asked one question
    ]
    assert names(article_groups(questions), questions) == ["a", "a", "c", "a", "c", "c"]


def test_a_chain_of_shared_articles_is_one_group_whatever_the_order():
    links = [Question(str(n), "q", f"context {n}", document=f"d{n // 2}", pool=f"p{(n + 1) // 2}") for n in range(400)]
    for seed in range(3):
        groups = article_groups(random.Random(seed).sample(links, len(links)))
        assert set(names(groups, links)) == {"d0"}


def test_what_was_mended_found_and_left_out_is_counted(context, tmp_path, capsys):
    qas = [
        {"id": 1, "question": "q", "answers": [{"text": "fever", "answer_start": 0}]},
        {"id": 2, "question": "q", "answers": [{"text": "fever", "answer_start": 2}, {"text": "x", "answer_start": 0}]},
        {"id": 3, "question": "q", "answers": [{"text": "pyrexia", "answer_start": 2}]},
        {"id": 4, "question": "q", "answers": [], "is_impossible": True},
        {"id": 5, "question": "q", "answers": []},
        {"id": 5, "question": "q", "answers": []},
    ]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "fever it was", "qas": qas}]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    everything = {"train": 1.0, "dev": 0, "test": 0}
    settings = QuestionsSettings(files=[{"path": str(tmp_path / "a.json")}], split=everything, max_rejects=0.4)
    metrics = run(settings, context)
    assert {name: count for name, count in metrics.items() if count} == {
        "questions": 4,
        "questions/train": 4,
        "articles/train": 1,
        "answers": 2,
        "answers_repaired": 1,
        "answers_nowhere": 1,
        "impossible": 1,
        "without_answer": 1,
        "rejected": 2,
    }
    rejects = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    assert [reject["record"] for reject in rejects] == ["3", "5"]
    stderr = capsys.readouterr().err
    assert "corrected the offsets of 1 answers" in stderr
    assert "1 further answers are not in their context" in stderr
    assert not (context.output / "alignment.json").exists()
    with pytest.raises(WorkError, match=r"2 of 6 .* line 1, record 3"):
        run(settings.model_copy(update={"max_rejects": 0.01}), context)


def test_snippets_are_aligned_and_stay_with_their_question(context, tmp_path):
    def factoid(name, *snippets):
        listed = [{"text": text, "document": f"{name}/{number}"} for number, text in enumerate(snippets)]
        gold = [["fever", "pyrexia"]]
        return {"id": name, "body": "q", "type": "factoid", "exact_answer": gold, "snippets": listed}

    questions = [factoid("a", "no fever", "Fever"), factoid("b", "x", "pyrexia"), factoid("c", "x y", "z")]
    (tmp_path / "a.json").write_text(json.dumps({"questions": questions}))
    settings = QuestionsSettings(
        files=[{"path": str(tmp_path / "a.json")}], split={"train": 0.5, "dev": 0.5, "test": 0}
    )
    for seed in range(8):
        try:
            metrics = run(settings.model_copy(update={"seed": seed}), context)
        except RequestError:
            continue
        parts = written(context)
        assert not {question.pool for question in parts["train"]} & {question.pool for question in parts["dev"]}
    assert metrics["aligned/exactly"] == metrics["aligned/by_case"] == metrics["aligned/in_a_synonym"] == 1
    assert metrics["aligned/not_found"] == 3
    assert json.loads((context.output / "alignment.json").read_text()) == {
        "snippets": {"exactly": 1, "by case": 1, "in a synonym": 1, "not found": 3},
        "questions": {"exactly": 1, "by case": 0, "in a synonym": 1, "not found": 1},
        "by_question": {"a": "exactly", "b": "in a synonym", "c": "not found"},
    }


def test_a_split_without_a_question_is_reported(context, tmp_path):
    with pytest.raises(RequestError, match=r"no question fell into dev and test; there are 1 groups .* `seed` than 1"):
        split(context, questions_of(["one"]), tmp_path, split={"train": 0.98, "dev": 0.01, "test": 0.01})


@with_covid
def test_covid_qa_is_split_by_article(context):
    metrics = run(QuestionsSettings(files=[{"path": str(COVID)}]), context)
    assert metrics["questions/train"] + metrics["questions/dev"] + metrics["questions/test"] == 1380
    assert metrics["articles/train"] + metrics["articles/dev"] + metrics["articles/test"] == 98
    assert (metrics["answers_repaired"], metrics["rejected"]) == (234, 0)
    contexts = [{question.context for question in part} for part in written(context).values()]
    assert len(set().union(*contexts)) == sum(map(len, contexts)) == 98
