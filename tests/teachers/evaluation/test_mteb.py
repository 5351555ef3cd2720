"""Tasks of mteb: on local files beside scipy and sentence-transformers, and their languages, prompts and folders."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.metrics import f1_score

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.stage import StageContext
from teachers import MtebEncoder, evaluate_tasks
from teachers.evaluation.settings import MtebSettings
from teachers.sbert_paper import protocols
from teachers.sbert_paper.settings import ProtocolSettings

ENGLISH = ["A dog barks.", "Rain falls.", "The sun is warm.", "He reads a book.", "Two cats sleep.", "She sings."]
GERMAN = ["Ein Hund bellt.", "Regen fällt.", "Die Sonne wärmt.", "Er liest ein Buch.", "Katzen schlafen.", "Sie singt."]
SCORES = [5.0, 3.2, 4.1, 0.5, 2.0, 1.1]
PROMPTS = {"STS": "dog rain ", "BitextMining-query": "cats ", "query": "sun sun "}


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return tiny_encoder("xlm-roberta", ENGLISH + GERMAN, prompts=Prompts(PROMPTS))


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "student"
    encoder.save(path)
    return path


@pytest.fixture
def local(tmp_path):
    """A task of similarity across two languages, a table for each, and one of translations."""
    for name, sentences in (("en", ENGLISH), ("de", GERMAN)):
        rows = [f"{sentence}\t{sentences[n - 1]}\t{SCORES[n]}" for n, sentence in enumerate(sentences)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
        (tmp_path / f"test.{name}").write_text("\n".join(sentences) + "\n")
    across = {"path": f"{tmp_path}/en.tsv", "second": f"{tmp_path}/de.tsv", "header": False}
    pairs = {"path": f"{tmp_path}/test.en", "second": f"{tmp_path}/test.de"}
    return [
        {"task": "Mine", "type": "sts", "languages": ["en", "de"], **across},
        {"task": "Mine", "type": "sts", "languages": ["de"], "path": f"{tmp_path}/de.tsv", "header": False},
        {"task": "Lines", "type": "bitext", "languages": ["en", "de"], **pairs},
    ]


def unit(encoder, texts, **prompt):
    vectors = encoder.encode(texts, precision="fp32", **prompt).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def expected(encoder):
    """The scores of both tasks: prompts by type, cosines, the nearest German sentence."""
    similarity = partial(unit, encoder, prompt_name="STS")
    german = similarity([GERMAN[n - 1] for n in range(6)])
    cosines = {"en-de": similarity(ENGLISH) * german, "de": similarity(GERMAN) * german}
    nearest = (unit(encoder, ENGLISH) @ unit(encoder, GERMAN).T).argmax(axis=1)
    metrics = {f"mteb/Mine/{name}/cosine_spearman": spearmanr(rows.sum(1), SCORES)[0] for name, rows in cosines.items()}
    return metrics | {"mteb/Lines/en-de/f1": f1_score(range(6), nearest, average="weighted", zero_division=0)}


@pytest.mark.promise(
    "mteb scores an encoder the same here and in sentence-transformers, offline on local files", about="elsewhere"
)
def test_mteb_scores_the_folder_in_sentence_transformers_the_same(encoder, folder, local):
    import mteb

    tasks = read(local=local)
    theirs = mteb.models.SentenceTransformerEncoderWrapper(str(folder), device="cpu")
    for model in (theirs, SentenceTransformer(str(folder), device="cpu"), MtebEncoder(encoder, precision="fp32")):
        for task in tasks:
            [result] = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results
            for scores in result.scores["test"]:
                name = f"mteb/{task.metadata.name}/{scores['hf_subset']}/{task.metadata.main_score}"
                assert scores["main_score"] == pytest.approx(expected(encoder)[name], abs=1e-5), (model, name)


def test_results_are_in_mtebs_folders_and_a_finished_task_is_not_run_again(
    encoder, folder, local, tmp_path, monkeypatch
):
    from mteb import ResultCache
    from mteb.results import TaskResult

    results = tmp_path / "kept"
    first = evaluate_tasks(folder, local=local, results=results)
    assert first == pytest.approx(expected(encoder), abs=1e-5)
    [path] = results.glob("results/*__student/*/Mine.json")
    assert json.loads(path.with_name("model_meta.json").read_text())["revision"] == path.parent.name
    result = TaskResult.from_disk(path)
    assert {scores["hf_subset"] for scores in result.scores["test"]} == {"en-de", "de"}
    assert result.languages and ResultCache(results).get_models()[0][1] == path.parent.name

    encoded = []
    whole = SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder,
        "encode",
        lambda self, texts, **options: encoded.append(texts) or whole(self, texts, **options),
    )
    assert evaluate_tasks(folder, local=local, results=results) == first
    assert encoded == []
    (tmp_path / "de.tsv").write_text((tmp_path / "de.tsv").read_text().replace("\t5.0", "\t0.1"))
    assert evaluate_tasks(folder, local=local, results=results) != first
    assert encoded and ENGLISH not in [texts for texts in encoded if len(texts) > 6]


def test_results_of_fewer_dimensions_are_kept_apart(encoder, folder, local, tmp_path):
    whole, cut = (evaluate_tasks(folder, local=local[1:2], results=tmp_path, truncate_dim=dim) for dim in (None, 3))
    german = unit(encoder, GERMAN, prompt_name="STS", truncate_dim=3)
    cosines = (german * german[[n - 1 for n in range(6)]]).sum(1)
    assert cut["mteb/Mine/de/cosine_spearman"] == pytest.approx(spearmanr(cosines, SCORES)[0], abs=1e-5)
    assert whole != cut and len(list(tmp_path.rglob("Mine.json"))) == 2


def test_a_stage_writes_results_below_its_output_in_its_languages(folder, local, context):
    settings = {"protocols": ["mteb"], "model": str(folder), "local": local[:2], "languages": ["de"]}
    metrics = protocols.run(ProtocolSettings.model_validate(settings), context)
    assert set(metrics) == {"mteb/Mine/de/cosine_spearman"}
    assert list(context.output.glob("results/*/*/Mine.json"))


@pytest.mark.parametrize(
    ("task", "languages", "subsets"),
    [
        ("STS17", ["en", "de"], {"en-en", "en-de"}),
        ("STS17", ["eng", "spa-Latn"], {"en-en", "es-en", "es-es"}),
        ("Tatoeba", ["en", "zh"], {"cmn-eng"}),
        ("Tatoeba", ["en", "zh-Hans"], {"cmn-eng"}),
    ],
)
def test_subsets_are_only_those_in_the_languages(task, languages, subsets):
    assert set(read(tasks=[task], languages=languages)[0].hf_subsets) == subsets


def read(**options):
    from teachers.evaluation.mteb import read_tasks

    settings = MtebSettings.model_validate({"model": "owner/name", **options})
    with Rejects(None) as rejects:
        return read_tasks(settings, StageContext(Path(), Cache(Path())), rejects)


def test_a_benchmark_is_all_of_its_tasks():
    names = {task.metadata.name for task in read(tasks=["MTEB(eng, v2)"])}
    assert len(names) > 30 and {"STSBenchmark", "BIOSSES"} <= names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["STS71"]}, "mteb has no task or benchmark STS71 .*Did you mean: 'STS17'"),
        ({"tasks": ["STS17"], "languages": ["fi"]}, "STS17 has nothing in fi only; it has ko-ko, ar-ar"),
        ({"tasks": ["STS17MultilingualVisualSTS"]}, "expected tasks on text, found images or sounds in STS17Multi"),
    ],
)
def test_an_unknown_task_or_language_is_reported(options, message):
    with pytest.raises(RequestError, match=message):
        read(**options)


def test_a_name_of_mtebs_own_is_refused(local):
    with pytest.raises(RequestError, match="STS17 is the name of a task of mteb; name yours otherwise"):
        read(local=[{**local[0], "task": "STS17"}])


def test_data_that_cannot_be_read_are_reported_by_their_task(folder, tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("mteb.abstasks.abstask.load_dataset", unreachable)
    with pytest.raises(RequestError, match=r"data of STS17 cannot be read \(ConnectionError: no route to the hub\)"):
        evaluate_tasks(folder, ["STS17"], languages=["en"], results=tmp_path)


def test_a_vector_that_is_not_finite_is_reported(folder, local, tmp_path):
    spoilt = SentenceEncoder.load(folder, "cpu")
    with torch.no_grad():
        next(spoilt.backbone.parameters())[:] = torch.nan
    spoilt.save(tmp_path / "spoilt/model")
    with pytest.raises(WorkError, match="not finite for text 1 of Mine"):
        evaluate_tasks(tmp_path / "spoilt/model", local=local, results=tmp_path)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(RequestError, match=r"pip install 'bertrelay\[mteb\]'"):
        read(tasks=["STS17"])
