"""SQuAD's scores against a slow implementation of its rules, and BioASQ's against cases worked by hand."""

import json
import random
from itertools import groupby

import numpy as np
import pytest

from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.metrics import (
    best_threshold,
    distinct_answers,
    factoid_metrics,
    factoid_score,
    scores,
    squad_metrics,
)
from domain.biomedical.qa.question_files import read_questions

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

PARTS = [
    *("a", "an", "the", "The", "AN", "A.", "a-", "-the-", "“the”", "the_the", "an_", "_a_", "the\u200b"),
    *("’", "'", "—", ".", ",", "?!", "。", "%", "％", "|", "\u00a0", "\u2009", "\t", "\n"),
    *("ß", "SS", "İ", "i\u0307", "é", "e\u0301", "a\u0301", "ﬁ", "fi", "𝟜", "4", "ａ", "α", "Σας", "ΣΑΣ"),
    *("cat", "cat's", "cats", "dog", "DOG", "42", "4.2", "theory", "anthem", "a1"),
]


# The rules, slowly: character by character, without a regular expression, a counter or a translation


def slow_words(text):
    letters = (character for character in text.lower() if character not in PUNCTUATION)
    runs = ("".join(run) for _, run in groupby(letters, lambda character: character.isalnum() or character == "_"))
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def slow_exact(answer, gold):
    return 1 if slow_words(answer) == slow_words(gold) else 0


def slow_f1(answer, gold, version):
    words, left = slow_words(answer), slow_words(gold)
    length, shared = len(left), 0
    if version == "2.0" and (not words or not left):
        return 1 if words == left else 0
    for word in words:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0
    precision, recall = shared / len(words), shared / length
    return (2 * precision * recall) / (precision + recall)


def slow_figures(articles, answers, version):
    """The metrics that the published script of a version prints, as fractions."""
    measured = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for record in paragraph["qas"]:
                golds, has_answer = [gold["text"] for gold in record["answers"]], bool(record["answers"])
                if version == "2.0":
                    golds = [gold for gold in golds if slow_words(gold)] or [""]
                if record["id"] not in answers:
                    if version == "1.1":
                        measured.append((has_answer, 0, 0))
                    continue
                answer = answers[record["id"]]
                best = max(slow_exact(answer, gold) for gold in golds)
                measured.append((has_answer, best, max(slow_f1(answer, gold, version) for gold in golds)))
    parts = {"": measured}
    if version == "2.0":
        parts |= {
            "has_answer/": [row for row in measured if row[0]],
            "no_answer/": [row for row in measured if not row[0]],
        }
    return {
        prefix + name: sum(row[column] for row in part) / len(part)
        for prefix, part in parts.items()
        for column, name in ((1, "exact_match"), (2, "f1"))
    }


def adversarial(generator):
    return generator.choice(["", " "]).join(generator.choice(PARTS) for _ in range(generator.randint(0, 6)))


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_figures_of_a_file_are_those_of_the_published_scripts_to_the_last_digit(version, tmp_path):
    generator = random.Random(11)
    articles, answers = [], {}
    for number in range(500):
        golds = [text for text in (adversarial(generator) for _ in range(generator.randint(1, 4))) if text.strip()]
        impossible = version == "2.0" and generator.random() < 0.3
        golds = [] if impossible else golds or ["the"]
        context = "".join(f"{gold}|" for gold in golds) or "nothing"
        starts = [len("".join(f"{gold}|" for gold in golds[:number])) for number in range(len(golds))]
        gold_answers = [{"text": gold, "answer_start": start} for gold, start in zip(golds, starts, strict=True)]
        record = {"id": f"q{number}", "question": "q", "answers": gold_answers, "is_impossible": impossible}
        articles.append({"title": f"t{number}", "paragraphs": [{"context": context, "qas": [record]}]})
        if number % 10:
            guess = generator.choice([*golds, "", adversarial(generator), "the"])
            answers[f"q{number}"] = guess + generator.choice(["", ".", " the", "!"])
    (tmp_path / "q.json").write_text(json.dumps({"version": version, "data": articles}))
    questions = list(read_questions(tmp_path / "q.json"))
    computed = scores(answers, questions, version)
    assert squad_metrics(computed, questions) == slow_figures(articles, answers, version)
    assert len(computed) == (500 if version == "1.1" else 450)


def test_the_version_is_inferred_from_impossible_questions():
    impossible = Question("2", "q", "c", impossible=True)
    questions = [Question("1", "q", "the c", (Answer("the", 0),)), impossible]
    assert scores({"1": "", "2": ""}, questions) == {"1": (1, 1), "2": (1, 1)}
    assert scores({"1": "", "2": "c"}, questions[:1]) == {"1": (1, 0)}


def test_what_nobody_knows_the_answer_of_has_no_score():
    assert scores({"1": "c"}, [Question("1", "q", "c")]) == {}
    assert squad_metrics({}, []) == {"exact_match": None, "f1": None}


# BioASQ


GOLD = (("Dupilumab", "DUPIXENT"), ("omalizumab",))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["Dupilumab"], (1, 1, 1)),
        (["dupiXent", "x"], (1, 1, 1)),  # a synonym, in other cases
        (["x", "Omalizumab"], (0, 1, 1 / 2)),  # another gold answer
        (["x", "y", "z", "u", "dupilumab"], (0, 1, 1 / 5)),
        (["x", "y", "z", "u", "v", "dupilumab"], (0, 1, 1 / 6)),  # the evaluator does not cut at five
        (["dupilumab, dupixent"], (0, 0, 0)),  # equality, not overlap
        (["the dupilumab"], (0, 0, 0)),  # articles are not taken away, as SQuAD does
        ([" dupilumab"], (0, 0, 0)),  # nor spaces
        (["dupilumab."], (0, 0, 0)),  # nor punctuation
        (["x", "dupixent", "omalizumab"], (0, 1, 1 / 2)),  # the first right one counts
        ([], (0, 0, 0)),  # there, and empty: wrong
        ([""], (0, 0, 0)),
        ([["x", "dupilumab"], ["omalizumab"]], (0, 1, 1 / 2)),  # of an answer with synonyms the first one counts
        ([[], ["dupilumab"]], (0, 1, 1 / 2)),  # an empty one keeps its rank
    ],
)
def test_factoid_scores_by_hand(answers, expected):
    assert factoid_score(answers, GOLD) == expected


def test_unanswered_questions_are_skipped_and_counted_as_wrong():
    golds = {"1": GOLD, "2": GOLD, "3": GOLD, "4": GOLD}
    assert factoid_metrics({"1": ["dupixent"], "2": ["x", "dupixent"], "3": []}, golds) == {
        "strict_accuracy": 1 / 3,
        "lenient_accuracy": 2 / 3,
        "mrr": 1.5 / 3,
        "with_unanswered/strict_accuracy": 1 / 4,
        "with_unanswered/lenient_accuracy": 2 / 4,
        "with_unanswered/mrr": 1.5 / 4,
        "unanswered": 1,
    }
    nothing = factoid_metrics({}, {"1": GOLD})
    assert (nothing["mrr"], nothing["with_unanswered/mrr"]) == (None, 0)


def test_answers_of_all_snippets_are_joined_by_scores_and_none_is_empty():
    first, second = [("b", 3.0), ("a", 1.0)], [("A", 2.5), ("", 9.0), ("c", -4.0)]
    joined = [("b", 3.0), ("A", 2.5), ("c", -4.0)]
    assert distinct_answers([*first, *second]) == distinct_answers([*second, *first]) == joined
    assert distinct_answers([("first", 1.0), ("second", 1.0)]) == [("first", 1.0), ("second", 1.0)]


def test_the_threshold_is_the_best_there_is():
    for seed in range(50):
        generator = np.random.default_rng(seed)
        gaps = generator.integers(-4, 4, 12).astype(float)  # equal ones among them
        gains = generator.random(12) - generator.integers(0, 2, 12)

        def total(threshold):
            return float(gains[gaps <= threshold].sum())  # noqa: B023

        thresholds = [*(gaps + 0.5), gaps.min() - 1]
        assert total(best_threshold(gaps, gains)) == pytest.approx(max(map(total, thresholds)))
    assert best_threshold(np.array([-1.0, 2.0, 3.0]), np.array([1.0, 1.0, -1.0])) == 2.5
    assert best_threshold(np.array([]), np.array([])) == 0.0
