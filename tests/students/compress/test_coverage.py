"""Trimming by languages: the held-out text, the order of subwords, and the fraction tokenized as before."""

import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from transformers import AutoTokenizer

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.new import train_unigram, train_wordpiece
from bertrelay.model.tokenizer import plain_rules
from students.compress.coverage import (
    is_held_out,
    rank_candidates,
    scripts_of,
    subword_texts,
    subwords_of_languages,
)
from students.compress.settings import ShrinkSettings
from students.compress.shrink import run, shrink
from students.compress.vocabulary import build_rules, tokenizer_json, trim_vocabulary

LETTERS = {"de": "abdefghilnorstuäöü", "ru": "абвдеиклмностуяш", "el": "αβγδεηικλμνοπρστ"}


def words_of(language, count=400):
    """Random words of a language's letters, of two or three of its syllables."""
    drawn, letters = Random(language), LETTERS[language]
    syllables = ["".join(drawn.choices(letters, k=3)) for _ in range(40)]
    return ["".join(drawn.choices(syllables, k=drawn.choice([2, 3]))) for _ in range(count)]


def sentences(language, count, seed=0):
    """Sentences of words by Zipf's law, so that some words are in few of them."""
    drawn, words = Random(f"{language} {seed}"), words_of(language)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(drawn.choices(words, weights, k=6)) + f" {number % 7}." for number in range(count)]


GENERAL = {language: sentences(language, 1500) for language in LETTERS}
ALL = [text for texts in GENERAL.values() for text in texts]


@pytest.fixture(scope="module", params=["unigram", "wordpiece", "byte-level BPE"])
def encoder(request, tiny_encoder, byte_level):
    kind, tokenizer = {
        "unigram": lambda: ("xlm-roberta", train_unigram(ALL, 3000, 32)),
        "wordpiece": lambda: ("bert", train_wordpiece(ALL, 1500, 32)),
        "byte-level BPE": lambda: ("roberta", byte_level(ALL, vocabulary=1500)),
    }[request.param]()
    return tiny_encoder(kind, tokenizer, layers=1, sizes={"vocab_size": len(tokenizer) + 3})


def corpus(count):
    """A small corpus of two languages of the vocabulary."""
    return {language: GENERAL[language][:count] for language in ("de", "ru")}


def coverage_by_hand(before, after, texts):
    """Fractions of the tokens, with their offsets, and of the texts, that are the same."""
    same = total = whole = 0
    for text in texts:
        old, new = (
            Counter(zip(cut.tokens, cut.offsets, strict=True))
            for cut in (rules.encode(text, add_special_tokens=False) for rules in (before, after))
        )
        same, total, whole = same + sum((old & new).values()), total + sum(old.values()), whole + (old == new)
    return same / total, whole / len(texts)


@pytest.mark.promise(
    "A vocabulary trimmed by languages has on held-out text the coverage that it reports", about="exact"
)
def test_the_requested_coverage_is_reached_on_held_out_text_and_reported(encoder):
    texts = corpus(120)
    ids, metrics = vars(subwords_of_languages(encoder, [*texts["de"], *texts["ru"]], texts, 0.99)).values()
    before = plain_rules(encoder.tokenizer)
    after = build_rules(tokenizer_json(before), ids)
    for language, of_language in texts.items():
        held_out = sorted({text for text in of_language if is_held_out(text)})
        assert 2 <= len(held_out) < 40
        same, whole = coverage_by_hand(before, after, held_out)
        assert metrics[f"coverage/{language}"] == pytest.approx(same) and same >= 0.99
        assert metrics[f"coverage_sentences/{language}"] == pytest.approx(whole)
        assert metrics[f"coverage_unknown/{language}"] == 0
        total = sum(len(before.encode(text, add_special_tokens=False)) for text in held_out)
        assert metrics[f"coverage_tokens/{language}"] == total


def test_higher_coverage_needs_more_subwords_and_unseen_text_keeps_more_of_its_tokens(encoder):
    texts = corpus(40)
    both_languages = [*texts["de"], *texts["ru"]]
    by_corpus = trim_vocabulary(encoder, both_languages)
    by_language = [
        shrink(encoder, both_languages, languages=texts, coverage=coverage).encoder for coverage in (0.9, 0.99, 1.0)
    ]
    sizes = [len(smaller.tokenizer) for smaller in (by_corpus, *by_language, encoder)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] < sizes[-1]
    before = plain_rules(encoder.tokenizer)
    for language in texts:
        unseen = sentences(language, 100, seed=1)
        after = (plain_rules(small.tokenizer) for small in (by_corpus, by_language[-1]))
        narrow, broad = (coverage_by_hand(before, rules, unseen)[0] for rules in after)
        assert narrow < broad
    for text in both_languages:  # held-out text too
        cut = [rules.encode(text).tokens for rules in (before, plain_rules(by_language[0].tokenizer))]
        assert cut[0] == cut[1]


def test_subwords_of_other_scripts_are_left_out(encoder):
    texts = corpus(40)
    small = shrink(encoder, [*texts["de"], *texts["ru"]], languages=texts, coverage=1.0).encoder
    greek, left = (
        {text for text in subword_texts(rules).values() if "α" in text and len(text.strip("# ▁")) > 1}
        for rules in (plain_rules(encoder.tokenizer), plain_rules(small.tokenizer))
    )
    assert len(greek) > 5 and not left


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_added_tokens_stay(tiny_encoder, kind):
    texts = corpus(40)
    encoder = tiny_encoder(kind, [*texts["de"], *texts["ru"]])
    encoder.tokenizer.add_tokens(["fishy"])
    encoder.backbone.resize_token_embeddings(len(encoder.tokenizer))
    grown = SentenceEncoder(encoder.backbone, encoder.tokenizer).eval()
    small = shrink(grown, texts["de"], languages={"de": texts["de"]}).encoder
    assert small.tokenizer.convert_ids_to_tokens(small.tokenize(["fishy"])[0])[1:-1] == ["fishy"]


def test_coverage_out_of_reach_is_logged_with_the_coverage_reached(encoder, capsys):
    mixed = [f"{text} {greek}" for text, greek in zip(GENERAL["de"][:60], GENERAL["el"], strict=False)]
    reached = subwords_of_languages(encoder, mixed, {"de": mixed}, 1.0).metrics["coverage/de"]
    assert 0.5 < reached < 1
    stderr = capsys.readouterr().err
    assert f"de {reached:.4f}" in stderr
    assert "1.0 is not reached in de, and no more subwords of their scripts help" in stderr
    trimmed = shrink(encoder, mixed, languages={"de": mixed}, coverage=1.0).encoder
    assert len(trimmed.tokenizer) < len(encoder.tokenizer)


def test_subwords_of_familiar_letters_come_first_each_part_in_the_tokenizers_order(tiny_encoder):
    encoder = tiny_encoder("xlm-roberta", train_unigram(ALL, 3000, 32), layers=1)
    rules = plain_rules(encoder.tokenizer)
    document, texts = tokenizer_json(rules), subword_texts(rules)
    letters = set("abdefghilnorst")
    ranks = rank_candidates("de", letters, texts, document)
    order = sorted(ranks, key=ranks.get)
    scores = {index: score for index, (_, score) in enumerate(document["model"]["vocab"])}
    familiar = [set(texts[index].strip("▁ .0123456789")) <= letters for index in order]
    border = sum(familiar)
    assert 0 < border < len(order) and familiar == [True] * border + [False] * (len(order) - border)
    for part in (order[:border], order[border:]):
        assert [scores[index] for index in part] == sorted((scores[index] for index in part), reverse=True)
    assert not any("ш" in texts[index] or "κ" in texts[index] for index in order)


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        *[("de", ("Latn",)), ("ru", ("Cyrl",)), ("sr", ("Cyrl",)), ("sr-Latn", ("Latn",)), ("th", ("Thai",))],
        *[("ja", ("Hira", "Kana", "Hani")), ("ko", ("Hang",)), ("zh", ("Hani",)), ("zh-TW", ("Hani", "Bopo"))],
    ],
)
def test_scripts_are_those_of_the_language(language, scripts):
    assert scripts_of(language) == scripts


def test_a_language_without_a_known_script_or_without_text_is_refused(encoder):
    with pytest.raises(RequestError, match="expected one whose script is known, found 'de-Zsym'"):
        subwords_of_languages(encoder, GENERAL["de"], {"de-Zsym": GENERAL["de"]}, 0.9)
    with pytest.raises(RequestError, match="expected text in de, a tenth of which is held out"):
        subwords_of_languages(encoder, GENERAL["de"], {"de": ["  "]}, 0.9)


def test_a_tenth_is_held_out():
    assert 0.08 < np.mean([is_held_out(f"text {number}") for number in range(5000)]) < 0.12


@pytest.fixture
def model(tiny_encoder, tmp_path):
    tiny_encoder("xlm-roberta", train_unigram(ALL, 3000, 32), layers=1).save(tmp_path / "large")
    return tmp_path / "large"


def stage(context, model, **settings):
    return run(ShrinkSettings.model_validate({"model": str(model), "precision": "fp32", **settings}), context)


def test_the_stage_trims_by_the_languages_of_tables_and_of_parallel_text(context, model, tmp_path):
    for language, name in (("de", "german.txt"), ("ru", "russian.txt")):
        (tmp_path / name).write_text("\n".join(GENERAL[language][:80]), encoding="utf-8")
    pairs = [f"{left}\t{right}" for left, right in zip(GENERAL["de"][:80], GENERAL["ru"][:80], strict=True)]
    (tmp_path / "en-ru.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    tables = [{"path": str(tmp_path / "german.txt"), "language": "de"}, {"path": str(tmp_path / "russian.txt")}]
    tables[1]["language"] = "ru"
    by_tables = stage(context, model, corpus=tables, languages=["de", "ru"], coverage=0.99)
    assert by_tables["vocabulary/after"] < by_tables["vocabulary/before"]
    assert by_tables["cosine_min"] == pytest.approx(1, abs=1e-6)
    parallel = [{"path": str(tmp_path / "en-ru.tsv"), "languages": ["ru"]}]
    by_pairs = stage(context, model, corpus=parallel, languages=["ru"], coverage=0.99)  # and en
    for key in ("coverage", "coverage_sentences", "coverage_unknown", "coverage_tokens"):
        assert by_pairs[f"{key}/ru"] == by_tables[f"{key}/ru"] and by_pairs[f"{key}/en"] == by_tables[f"{key}/de"]
    assert json.loads((context.output / "model/config.json").read_text())["vocab_size"] == by_pairs["vocabulary/after"]
    assert AutoTokenizer.from_pretrained(context.output / "model").tokenize(GENERAL["ru"][0]) == SentenceEncoder.load(
        model
    ).tokenizer.tokenize(GENERAL["ru"][0])
