"""Model cards: what they say is what the stages found, and Hugging Face's tools and sentence-transformers read them."""

import json
import re
import shutil

import numpy as np
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from pydantic import ValidationError
from sentence_transformers import SentenceTransformer

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from pipelines.cards.card import write_card
from pipelines.cards.content import literal
from pipelines.cards.settings import CardSettings, known_licenses
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.plan import RunOptions
from pipelines.run.runner import run
from pipelines.run.store import Done, read_done

PAIRS = {
    "A dog barks.": ("Ein Hund bellt.", "Un chien aboie."),
    "Rain falls.": ("Regen fällt.", "Il pleut."),
    "The sun is warm.": ("Die Sonne wärmt.", "Le soleil chauffe."),
    "He reads a book.": ("Er liest ein Buch.", "Il lit un livre."),
    "Two cats sleep.": ("Zwei Katzen schlafen.", "Deux chats dorment."),
    "She sings.": ("Sie singt.", "Elle chante."),
}
RECIPE = """
name = "tiny"
seed = 1

[student]
uses = "students.distill"
teacher = "{folder}/teacher"
base = {{ layers = 1, dim = 16, heads = 2, vocabulary = 200 }}
parallel = [{{ path = "private/train.tsv", others = {{ de = "de", fr = "fr" }} }}]
dev_sentences = 1
max_tokens = 24
learning_rate = 1e-3

[test]
uses = "students.evaluate"
model = "@student/model"
parallel = [{{ path = "private/train.tsv", others = {{ de = "de" }} }}]
sts.de = {{ path = "sts.tsv", header = false }}

[start]
uses = "students.evaluate"
model = "{folder}/teacher"
parallel = [{{ path = "private/train.tsv", others = {{ de = "de" }} }}]

[card]
uses = "report.card"
model = "@student/model"
results = ["@student", "@test", "@start"]
name = "me/tiny-de-fr"
license = "apache-2.0"
base_model = ["org/base"]
teacher = "org/teacher"
description = "A | pipe and a **word**."
limits = ["It is tiny."]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_encoder):
    """A run whose last stage is a card: the folder of runs, and the card's."""
    folder = tmp_path_factory.mktemp("card")
    texts = [text for english, others in PAIRS.items() for text in (english, *others)]
    tiny_encoder("bert", texts).save(folder / "teacher")
    (folder / "private").mkdir()
    rows = ["en\tde\tfr", *("\t".join([english, *others]) for english, others in PAIRS.items())]
    (folder / "private/train.tsv").write_text("\n".join(rows))
    german = [others[0] for others in PAIRS.values()]
    (folder / "sts.tsv").write_text("\n".join(f"{text}\t{german[n - 1]}\t{n}.0" for n, text in enumerate(german)))
    (folder / "tiny.toml").write_text(RECIPE.format(folder=folder))
    run(read_recipe(str(folder / "tiny.toml"), REGISTRY), RunOptions(runs=folder / "runs"))
    return folder / "runs/tiny"


@pytest.fixture
def card(finished):
    return ModelCard.load(finished / "card/latest/model/README.md")


def test_the_metadata_are_hugging_faces(card):
    metadata = card.data.to_dict()
    assert metadata["language"] == ["en", "de", "fr"]
    assert (metadata["license"], metadata["library_name"]) == ("apache-2.0", "sentence-transformers")
    assert (metadata["pipeline_tag"], metadata["base_model"]) == ("sentence-similarity", ["org/base"])
    assert {"sentence-transformers", "multilingual"} <= set(metadata["tags"])
    assert ModelCard(str(card)).data.to_dict() == metadata  # written again it is the same
    name, results = model_index_to_eval_results(metadata["model-index"])
    assert name == "me/tiny-de-fr" and len({result.unique_identifier for result in results}) == len(results) == 3


def test_metrics_of_a_shrunk_model_are_its_own_and_those_before_are_not(tmp_path, finished):
    folder = tmp_path / "small/abc"
    shutil.copytree(finished / "student/latest/model", folder / "model")
    names = ["sts/x/{}/spearman_cosine", "translation_accuracy/{}/en-de"]
    metrics = {name.format(moment): value for name in names for moment, value in (("before", 0.5), ("after", 0.4))}
    facts = {key: {} for key in Done.__dataclass_fields__} | {"metrics": metrics, "seconds": 1.0}
    facts |= {"parts": {"uses": "students.shrink", "model": "hub:owner/large@1"}}
    (folder / "done.json").write_text(json.dumps(facts))
    card = ModelCard.load(write_card(folder / "model", tmp_path / "out", results=[folder], license="mit"))
    assert "another model" not in card.text
    values = {result.dataset_name: result.metric_value for result in card.data.eval_results}
    assert values == {"small: x": 0.4, "small: en-de": 0.4}
    with pytest.raises(RequestError, match=r"output: there is no folder .*none"):
        write_card(folder / "model", tmp_path / "none/out", results=[folder], license="mit")


def test_a_student_that_does_not_fit_its_teacher_is_said_to_before_its_use(tmp_path, finished):
    folder = tmp_path / "student/abc"
    shutil.copytree(finished / "student/latest", folder)
    facts = json.loads((folder / "done.json").read_text())
    distances = {"dev/mse_relative/en": 0.9, "dev/mse_relative/de": 1.4, "dev/mse_relative/fr": 1.1}
    facts["metrics"] = {name: value for name, value in facts["metrics"].items() if "accuracy" not in name} | distances
    facts["metrics"] |= {"dev/sentences/de": 500, "dev/sentences/fr": 500}
    (folder / "done.json").write_text(json.dumps(facts))
    text = write_card(folder / "model", tmp_path / "out", results=[folder], license="mit").read_text()
    verdict = "**Not fit for use** by the stage student: No better than the mean vector of the teacher in de and fr."
    assert text.index(verdict) < text.index("It was trained to map sentences") < text.index("## Use")
    facts["metrics"] |= {"dev/mse_relative/de": 0.4, "dev/mse_relative/fr": 0.3}
    (folder / "done.json").write_text(json.dumps(facts))
    text = write_card(folder / "model", tmp_path / "good", results=[folder], license="mit").read_text()
    assert "Measured by the stage student: Better than the mean vector" in text and "It maps sentences" in text


def test_one_vector_space_is_claimed_only_where_the_metrics_show_it(tmp_path, finished):
    folder = tmp_path / "student/abc"
    shutil.copytree(finished / "student/latest", folder)
    facts = json.loads((folder / "done.json").read_text())
    near = {f"nearness/cosine/{language}": 0.8 for language in ("en", "de", "fr")} | {"nearness/cosine/sw": 0.1}
    near |= {f"recall_at_10_ratio/{language}": 0.97 for language in ("de", "fr")}
    untrained = {f"dev/nearness/cosine/untrained/{language}": 0.75 for language in ("en", "de", "fr")}
    for number, (changed, words) in enumerate(
        [
            ({}, "share one vector space on the sentences they were compared on: mean cosine"),
            ({"recall_at_10_ratio/fr": 0.9}, "This is not the teacher's vector space."),
            ({"dev/nearness/cosine/untrained/de": 0.4}, "vectors 0.400 (de) to 0.750 (en); recall@10"),
        ]
    ):
        facts["metrics"] = near | untrained | changed
        (folder / "done.json").write_text(json.dumps(facts))
        text = write_card(folder / "model", tmp_path / f"out{number}", results=[folder], license="mit").read_text()
        assert words in text and ("one vector space" in text) == (not changed)


@pytest.mark.promise("A model card is valid, and its metrics are those of the stages", about="exact")
def test_its_metrics_are_those_of_the_stages_and_of_the_published_model_only(finished, card):
    metrics = read_done(finished / "test/latest").metrics
    names = ["translation_accuracy/en-de", "translation_accuracy/de-en", "sts/de/spearman_cosine"]
    assert [result.metric_value for result in card.data.eval_results] == [round(metrics[name], 4) for name in names]
    for name in names:
        low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
        if low is not None:
            assert f"{metrics[name]:.3f} ({low:.3f} – {high:.3f})".replace("-", "−") in card.text
    assert "start (another model)" in card.text
    assert {result.dataset_name.partition(":")[0] for result in card.data.eval_results} == {"test"}


def test_it_has_the_data_with_counts_the_settings_the_limits_and_no_folder_of_this_machine(finished, card):
    corpus = json.loads((finished / "student/latest/corpus.json").read_text())
    for source in corpus["sources"]:
        assert f"| train.tsv | {source['language']} | {source['pairs']} | {source['train']} |" in card.text
    assert f"translations: {corpus['train']['de']} de, {corpus['train']['fr']} fr" in card.text
    assert "- teacher: org/teacher" in card.text and "learning_rate = 0.001" in card.text
    assert "cut to 24 tokens" in card.text and "- No test above is in fr." in card.text and "- It is tiny." in card.text
    assert "private" not in str(card) and str(finished.parent) not in str(card)


@pytest.mark.promise("The published folder has the vectors of the model in sentence-transformers", about="elsewhere")
def test_the_published_folder_loads_in_sentence_transformers_with_equal_vectors(finished):
    texts = [text for english, others in PAIRS.items() for text in (english, *others)]
    ours = SentenceEncoder.load(finished / "student/latest/model", "cpu").encode(texts, precision="fp32")
    folder = finished / "card/latest/model"
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.array_equal(SentenceEncoder.load(folder, "cpu").encode(texts, precision="fp32"), ours)


def test_the_code_of_the_card_runs(finished, card):
    for code in re.findall(r"```python\n(.*?)```", card.text, re.DOTALL):
        exec(code.replace("me/tiny-de-fr", str(finished / "card/latest/model")), {})


def test_the_command_writes_the_card_of_the_stage(finished, call, tmp_path):
    words = ["--license", "mit", "--limit", "One.", "--language", "de", "--results", finished / "test/latest"]
    out = call("card", finished / "student/latest/model", tmp_path / "my-model", *words)
    assert "README.md: model card" in out
    card = ModelCard.load(tmp_path / "my-model/README.md")
    assert card.data.language == ["de"] and card.data.license == "mit" and card.data.model_name == "my-model"
    assert "## Training" not in card.text and "- One." in card.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-model"]


def test_a_name_of_a_file_cannot_break_a_table(finished, tmp_path):
    (tmp_path / "stage/result").mkdir(parents=True)
    done = json.loads((finished / "student/latest/done.json").read_text())
    (tmp_path / "stage/result/done.json").write_text(json.dumps(done))
    facts = json.loads((finished / "student/latest/corpus.json").read_text())
    facts["sources"][0] |= {"source": "/home/me/a|b<script>\n.tsv", "pairs": 99, "train": 90, "drawn": 40}
    english = {"source": "/home/me/news.txt", "sentences": 2000, "train": 1900, "drawn": 1500}
    facts |= {"english_without_translations": 1500, "english_sources": [english]}
    (tmp_path / "stage/result/corpus.json").write_text(json.dumps(facts))
    written = write_card(
        finished / "student/latest/model", tmp_path / "out", results=[tmp_path / "stage/result"], license="mit"
    )
    teacher = read_done(finished / "student/latest").parts["teacher"]  # a folder, which nothing else names
    assert f"- teacher: a folder, sha256 {teacher.removeprefix('folder:')}" in written.read_text()
    assert r"| a\|b&lt;script> .tsv | de | 99 | 40 |" in written.read_text() and "/home" not in written.read_text()
    assert "| news.txt | en | 2,000 | 1,500 |" in written.read_text()
    assert "English sentences without translations: 1,500." in written.read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"license": "Apache 2"}, "expected an identifier such as apache-2.0.* did you mean apache-2.0"),
        ({"license": "my own"}, "for any other write other, with license_name and license_link"),
        ({"license": "other"}, "expected license_name and license_link"),
        ({"license": "mit", "license_link": "x"}, "license_link: without effect"),
        ({}, "license"),
        ({"license": "mit", "base_model": ["a b"]}, "expected a name of the hub"),
        ({"license": "mit", "languages": ["german"]}, "expected a language code such as de"),
    ],
)
def test_settings_that_make_no_valid_card_are_reported(settings, message):
    with pytest.raises(ValidationError, match=message):
        CardSettings.model_validate({"model": "a/b", "results": ["x"], "name": "me/x", **settings})
    assert len(known_licenses()) == len(set(known_licenses()))


def test_what_is_no_finished_stage_is_reported_and_leaves_nothing(finished, tmp_path):
    with pytest.raises(RequestError, match=r"expected the folder of a finished stage, with done\.json in it"):
        write_card(finished / "student/latest/model", tmp_path / "out", results=[tmp_path], license="mit")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="expected a folder that does not exist yet"):
        write_card(finished / "student/latest/model", tmp_path, results=[finished / "test/latest"], license="mit")


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        *[("MIT License", "mit"), ("The MIT License", "mit"), ("Apache License, Version 2.0", "apache-2.0")],
        *[("Apache 2.0", "apache-2.0"), ("CC BY-SA 4.0", "cc-by-sa-4.0"), ("BSD 3-Clause", "bsd-3-clause")],
        *[("GPL v3.0", "gpl-3.0"), ("other", "other"), ("apache-2.0", "apache-2.0")],
    ],
)
def test_a_license_as_people_write_it_is_its_identifier(written, identifier):
    more = {"license_name": "own", "license_link": "LICENSE"} if identifier == "other" else {}
    settings = {"model": "./m", "results": ["./r"], "name": "a/b", "license": written, **more}
    assert CardSettings.model_validate(settings).license == identifier


def test_a_cell_is_shown_as_it_is_written_and_has_no_live_link():
    hostile = "[a](http://x.org) ![b](c) <http://d> www.e.org f@g.org `h` recall@10, en-de | *i*"
    links = r"\[a\](http&#58;//x.org) !\[b\](c) &lt;http&#58;//d> www&#46;e.org f&#64;g.org"
    assert literal(hostile) == links + r" \`h\` recall@10, en-de \| \*i\*"
